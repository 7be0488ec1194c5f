//! Takes Swagger UI's two files out of the archive that a crate carries, as gzip: what a zip holds is the same, between other brackets.

use std::path::Path;
use std::{env, fs, io};

const FILES: [&str; 2] = ["dist/swagger-ui-bundle.js", "dist/swagger-ui.css"];
const CENTRAL: &[u8] = b"PK\x01\x02";
const GZIP: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

fn main() -> io::Result<()> {
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("no OUT_DIR"))?;
    let archive = utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;
    for file in FILES {
        let gzip = as_gzip(archive, file).ok_or_else(|| io::Error::other(format!("{file} is not in the archive")))?;
        let name = Path::new(file).file_name().unwrap_or_default();
        fs::write(Path::new(&out).join(name).with_extension("gz"), gzip)?;
    }
    Ok(())
}

/// A file of the archive, compressed as it is.
fn as_gzip(archive: &[u8], file: &str) -> Option<Vec<u8>> {
    let number = |at: usize| Some(u32::from_le_bytes(archive.get(at..at + 4)?.try_into().ok()?));
    let short = |at: usize| Some(usize::from(u16::from_le_bytes(archive.get(at..at + 2)?.try_into().ok()?)));
    let entries = archive.windows(4).enumerate().filter(|(_, window)| *window == CENTRAL).map(|(at, _)| at);
    for at in entries {
        let name = archive.get(at + 46..at + 46 + short(at + 28)?)?;
        if !name.ends_with(file.as_bytes()) {
            continue;
        }
        let (checksum, packed, size, local) = (number(at + 16)?, number(at + 20)?, number(at + 24)?, number(at + 42)?);
        let local = local as usize;
        let content = local + 30 + short(local + 26)? + short(local + 28)?;
        let content = archive.get(content..content + packed as usize)?;
        return Some([&GZIP, content, &checksum.to_le_bytes(), &size.to_le_bytes()].concat());
    }
    None
}
