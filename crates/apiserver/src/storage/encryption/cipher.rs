//! The ciphers of values at rest, byte for byte as upstream writes them.

use aes::cipher::{Array, BlockModeDecrypt as _, BlockModeEncrypt as _, KeyIvInit as _, StreamCipher as _};
use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use poly1305::Poly1305;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

const BLOCK: usize = 16;
const TAG: usize = 16;
const GCM_NONCE: usize = 12;
const SECRETBOX_NONCE: usize = 24;
/// The random part that a value's own key is derived with.
const INFO: usize = 32;
pub(super) const SEED: usize = 32;

type Aes192Gcm = aes_gcm::AesGcm<aes::Aes192, aes_gcm::aead::consts::U12>;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CipherError {
    #[error("the stored data was shorter than the required size")]
    Short,
    #[error("the stored data is not a multiple of the block size")]
    Blocks,
    #[error("invalid PKCS7 data (empty or not padded)")]
    Unpadded,
    #[error("invalid padding on input")]
    Padding,
    #[error("cipher: message authentication failed")]
    Forged,
    #[error("output array was not large enough for encryption")]
    Secretbox,
    #[error("crypto/aes: invalid key size {0}")]
    KeySize(usize),
    #[error("unable to read sufficient random bytes")]
    Random,
}

type Result<T> = std::result::Result<T, CipherError>;

/// One key and what it is used with.
pub(super) enum Cipher {
    Gcm(Gcm),
    Cbc(Vec<u8>),
    Secretbox([u8; 32]),
}

impl Cipher {
    /// The second is what the value belongs to, so that it cannot be moved; only GCM knows such a thing.
    pub(super) fn seal(&self, plain: &[u8], path: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Gcm(key) => key.seal(plain, path, &[]),
            Self::Cbc(key) => cbc_seal(key, plain),
            Self::Secretbox(key) => secretbox_seal(key, plain),
        }
    }

    pub(super) fn open(&self, sealed: &[u8], path: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Gcm(key) => key.open(sealed, path),
            Self::Cbc(key) => cbc_open(key, sealed),
            Self::Secretbox(key) => secretbox_open(key, sealed),
        }
    }
}

pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| CipherError::Random)?;
    Ok(bytes)
}

/// AES-GCM with a random nonce before the sealed text.
pub(super) enum Gcm {
    Common(Box<LessSafeKey>),
    /// The one size that ring has not.
    Middle(Box<Aes192Gcm>),
}

impl Gcm {
    pub(super) fn new(key: &[u8]) -> Result<Self> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            size => {
                let key = Aes192Gcm::new_from_slice(key).map_err(|_| CipherError::KeySize(size))?;
                return Ok(Self::Middle(Box::new(key)));
            }
        };
        let key = UnboundKey::new(algorithm, key).map_err(|_| CipherError::KeySize(key.len()))?;
        Ok(Self::Common(Box::new(LessSafeKey::new(key))))
    }

    fn seal(&self, plain: &[u8], path: &[u8], before: &[u8]) -> Result<Vec<u8>> {
        let nonce = random::<GCM_NONCE>()?;
        let mut out = Vec::with_capacity(before.len() + GCM_NONCE + plain.len() + TAG);
        out.extend_from_slice(before);
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        let text = out.get_mut(start..).unwrap_or_default();
        match self {
            Self::Common(key) => {
                let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(path), text);
                out.extend_from_slice(tag.map_err(|_| CipherError::Forged)?.as_ref());
            }
            Self::Middle(key) => {
                let tag = key.encrypt_inout_detached(&Array(nonce), path, text.into());
                out.extend_from_slice(&tag.map_err(|_| CipherError::Forged)?);
            }
        }
        Ok(out)
    }

    fn open(&self, sealed: &[u8], path: &[u8]) -> Result<Vec<u8>> {
        let (nonce, text) = sealed.split_first_chunk::<GCM_NONCE>().ok_or(CipherError::Short)?;
        let (_, tag) = text.split_last_chunk::<TAG>().ok_or(CipherError::Forged)?;
        let mut out = text.to_vec();
        let length = out.len() - TAG;
        match self {
            Self::Common(key) => {
                let nonce = Nonce::assume_unique_for_key(*nonce);
                key.open_in_place(nonce, Aad::from(path), &mut out).map_err(|_| CipherError::Forged)?;
            }
            Self::Middle(key) => {
                let text = out.get_mut(..length).unwrap_or_default();
                key.decrypt_inout_detached(&Array(*nonce), path, text.into(), &Array(*tag))
                    .map_err(|_| CipherError::Forged)?;
            }
        }
        out.truncate(length);
        Ok(out)
    }
}

/// A seed from which every value gets a key of its own, so that random nonces never wear one out.
pub(super) struct Seed(hmac::Key);

impl Seed {
    pub(super) fn new(seed: &[u8]) -> Result<Self> {
        if seed.len() < SEED {
            return Err(CipherError::KeySize(seed.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, seed)))
    }

    /// HKDF's expansion, of which one block is enough.
    fn derive(&self, info: &[u8; INFO]) -> Result<Gcm> {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(info);
        context.update(&[1]);
        Gcm::new(context.sign().as_ref())
    }

    pub(super) fn seal(&self, plain: &[u8], path: &[u8]) -> Result<Vec<u8>> {
        let info = random::<INFO>()?;
        self.derive(&info)?.seal(plain, path, &info)
    }

    pub(super) fn open(&self, sealed: &[u8], path: &[u8]) -> Result<Vec<u8>> {
        let (info, sealed) = sealed.split_first_chunk::<INFO>().ok_or(CipherError::Short)?;
        self.derive(info)?.open(sealed, path)
    }
}

/// Encrypts or decrypts whole blocks in place.
fn cbc(key: &[u8], iv: &[u8; BLOCK], blocks: &mut [u8], seal: bool) -> Result<()> {
    macro_rules! with {
        ($size:ty) => {{
            let (iv, size) = (iv.as_slice(), |_| CipherError::KeySize(key.len()));
            let (blocks, _) = Array::slice_as_chunks_mut(blocks);
            match seal {
                true => cbc::Encryptor::<$size>::new_from_slices(key, iv).map_err(size)?.encrypt_blocks(blocks),
                false => cbc::Decryptor::<$size>::new_from_slices(key, iv).map_err(size)?.decrypt_blocks(blocks),
            }
        }};
    }
    match key.len() {
        16 => with!(aes::Aes128),
        24 => with!(aes::Aes192),
        _ => with!(aes::Aes256),
    }
    Ok(())
}

/// AES-CBC with PKCS#7 padding, after its random first block.
fn cbc_seal(key: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
    let iv = random::<BLOCK>()?;
    let padding = BLOCK - plain.len() % BLOCK;
    let mut out = Vec::with_capacity(BLOCK + plain.len() + padding);
    out.extend_from_slice(&iv);
    out.extend_from_slice(plain);
    out.resize(out.len() + padding, u8::try_from(padding).unwrap_or_default());
    cbc(key, &iv, out.get_mut(BLOCK..).unwrap_or_default(), true)?;
    Ok(out)
}

fn cbc_open(key: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
    let (iv, text) = sealed.split_first_chunk::<BLOCK>().ok_or(CipherError::Short)?;
    if text.len() % BLOCK != 0 {
        return Err(CipherError::Blocks);
    }
    let mut out = text.to_vec();
    cbc(key, iv, &mut out, false)?;
    let last = out.last().copied().unwrap_or_default();
    let start = out.len().checked_sub(usize::from(last)).filter(|_| last > 0).ok_or(CipherError::Unpadded)?;
    if out.iter().skip(start).any(|byte| *byte != last) {
        return Err(CipherError::Padding);
    }
    out.truncate(start);
    Ok(out)
}

/// NaCl's secretbox: the first bytes of XSalsa20's stream are the key of the Poly1305 tag, which comes before the text.
fn secretbox(key: &[u8; 32], nonce: &[u8; SECRETBOX_NONCE]) -> (Poly1305, salsa20::XSalsa20) {
    let mut stream = salsa20::XSalsa20::new(&Array(*key), &Array(*nonce));
    let mut first = [0; 32];
    stream.apply_keystream(&mut first);
    (Poly1305::new(&Array(first)), stream)
}

fn secretbox_seal(key: &[u8; 32], plain: &[u8]) -> Result<Vec<u8>> {
    let nonce = random::<SECRETBOX_NONCE>()?;
    let (authenticator, mut stream) = secretbox(key, &nonce);
    let mut text = plain.to_vec();
    stream.apply_keystream(&mut text);
    let tag = authenticator.compute_unpadded(&text);
    Ok([&nonce, tag.as_slice(), &text].concat())
}

fn secretbox_open(key: &[u8; 32], sealed: &[u8]) -> Result<Vec<u8>> {
    let (nonce, sealed) = sealed.split_first_chunk::<SECRETBOX_NONCE>().ok_or(CipherError::Short)?;
    let (tag, text) = sealed.split_first_chunk::<TAG>().ok_or(CipherError::Short)?;
    let (authenticator, mut stream) = secretbox(key, nonce);
    let differing = authenticator.compute_unpadded(text).iter().zip(tag).fold(0, |all, (own, told)| all | (own ^ told));
    if differing != 0 {
        return Err(CipherError::Secretbox);
    }
    let mut out = text.to_vec();
    stream.apply_keystream(&mut out);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(&'static str, Cipher)> {
        let gcm = |size| Cipher::Gcm(Gcm::new(&vec![7; size]).unwrap());
        vec![
            ("gcm 128", gcm(16)),
            ("gcm 192", gcm(24)),
            ("gcm 256", gcm(32)),
            ("cbc 128", Cipher::Cbc(vec![7; 16])),
            ("cbc 192", Cipher::Cbc(vec![7; 24])),
            ("cbc 256", Cipher::Cbc(vec![7; 32])),
            ("secretbox", Cipher::Secretbox([7; 32])),
        ]
    }

    #[test]
    fn what_is_sealed_opens_at_every_length_and_never_twice_the_same() {
        for (name, cipher) in all() {
            for length in [0, 1, 15, 16, 17, 1000] {
                let plain = vec![b'x'; length];
                let sealed = cipher.seal(&plain, b"/a").unwrap();
                assert_ne!(sealed, cipher.seal(&plain, b"/a").unwrap(), "{name}");
                assert_eq!(cipher.open(&sealed, b"/a").unwrap(), plain, "{name} of {length}");
            }
        }
        let seed = Seed::new(&[9; SEED]).unwrap();
        assert_eq!(seed.open(&seed.seal(b"text", b"/a").unwrap(), b"/a").unwrap(), b"text");
    }

    #[test]
    fn what_was_changed_or_moved_is_refused() {
        for (name, cipher) in all().into_iter().filter(|(name, _)| !name.starts_with("cbc")) {
            let mut sealed = cipher.seal(b"some text", b"/a").unwrap();
            let moved = cipher.open(&sealed, b"/b").is_err();
            assert_eq!(moved, name.starts_with("gcm"), "{name}: only GCM knows where a value belongs");
            *sealed.last_mut().unwrap() ^= 1;
            assert!(cipher.open(&sealed, b"/a").is_err(), "{name}");
            assert!(cipher.open(b"short", b"/a").is_err(), "{name}");
        }
        let seed = Seed::new(&[9; SEED]).unwrap();
        assert_eq!(seed.open(&seed.seal(b"text", b"/a").unwrap(), b"/b"), Err(CipherError::Forged));
        let cbc = Cipher::Cbc(vec![7; 32]);
        assert_eq!(cbc.open(&[0; 17], b""), Err(CipherError::Blocks));
        assert_eq!(cbc.open(&[0; 16], b""), Err(CipherError::Unpadded));
        assert_eq!(cbc.open(&[0; 15], b""), Err(CipherError::Short));
    }

    /// A secretbox that NaCl's implementations are tested with, and NIST's vector of GCM with a key of 192 bits.
    #[test]
    fn published_vectors_hold() {
        let sealed = "8442bc313f4626f1359e3b50122b6ce6fe66ddfe7d39d14e637eb4fd5b45beadab55198df6ab5368439792a23c87db70acb6156dc5ef957ac04f6276cf6093b84be77ff0849cc33e34b7254d5a8f65ad";
        let opened = secretbox_open(&[1; 32], &[vec![2; 24], hex(sealed)].concat()).unwrap();
        assert_eq!(opened, [3; 64]);
        let gcm = Gcm::new(&[0; 24]).unwrap();
        let sealed = hex("00000000000000000000000098e7247c07f0fe411c267e4384b0f6002ff58d80033927ab8ef4d4587514f0fb");
        assert_eq!(gcm.open(&sealed, b"").unwrap(), [0; 16]);
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
    }
}
