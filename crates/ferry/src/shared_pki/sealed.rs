//! Files under a token: AES-256-GCM with a key drawn from the token by PBKDF2.

use std::num::NonZeroU32;

use anyhow::{Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::Rng as _;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::pbkdf2;
use serde::{Deserialize, Serialize};

use super::Files;

/// A token that a person chose may be weak; this makes guessing slow.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(600_000).expect("not zero");

/// As it lies in the store.
#[derive(Serialize, Deserialize)]
pub(super) struct Sealed {
    /// Raised when the layout changes.
    version: u32,
    iterations: NonZeroU32,
    salt: String,
    nonce: String,
    sealed: String,
}

/// A token nobody can guess.
pub(super) fn new_token() -> String {
    hex::encode(rand::rng().random::<[u8; 32]>())
}

impl Sealed {
    pub(super) fn read(bytes: &[u8]) -> Result<Sealed> {
        let sealed: Sealed =
            serde_json::from_slice(bytes).map_err(|_| anyhow!("the cluster's keys in the store are damaged"))?;
        anyhow::ensure!(sealed.version == 1, "the cluster's keys were written by a newer version");
        Ok(sealed)
    }

    pub(super) fn write(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    pub(super) fn close(token: &str, files: &Files) -> Result<Sealed> {
        let (salt, nonce) = (rand::rng().random::<[u8; 16]>(), rand::rng().random::<[u8; 12]>());
        let mut bytes = serde_json::to_vec(files)?;
        key(token, &salt, ITERATIONS)?
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut bytes)
            .map_err(|_| anyhow!("the cluster's keys cannot be encrypted"))?;
        let encode = |bytes: &[u8]| STANDARD.encode(bytes);
        let (salt, nonce, sealed) = (encode(&salt), encode(&nonce), encode(&bytes));
        Ok(Sealed { version: 1, iterations: ITERATIONS, salt, nonce, sealed })
    }

    pub(super) fn open(&self, token: &str) -> Result<Files> {
        let wrong = |_| anyhow!("they cannot be decrypted");
        let mut bytes = STANDARD.decode(&self.sealed)?;
        let nonce = Nonce::try_assume_unique_for_key(&STANDARD.decode(&self.nonce)?).map_err(wrong)?;
        let key = key(token, &STANDARD.decode(&self.salt)?, self.iterations)?;
        let plain = key.open_in_place(nonce, Aad::empty(), &mut bytes).map_err(wrong)?;
        Ok(serde_json::from_slice(plain)?)
    }
}

fn key(token: &str, salt: &[u8], iterations: NonZeroU32) -> Result<LessSafeKey> {
    let mut key = [0; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, token.as_bytes(), &mut key);
    let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| anyhow!("the key cannot be used"))?;
    Ok(LessSafeKey::new(key))
}
