//! `ferry image`: the local image store from the command line, whether a cluster runs on it or not.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use runtime::Credentials;

use crate::cli::{Image, ImageCommand};
use crate::progress::human;

pub(crate) async fn run(options: Image) -> Result<()> {
    let root = options.data_dir.join("runtime/images");
    let images = runtime::Images::open_shared(&root)
        .with_context(|| format!("the image store in {} cannot be opened", root.display()))?;
    let mut out = std::io::stdout().lock();
    match options.command {
        ImageCommand::Import { archive } => {
            let started = std::time::Instant::now();
            for image in
                images.import(&archive).await.with_context(|| format!("cannot import {}", archive.display()))?
            {
                writeln!(out, "{}  {}", image.id, names(&image))?;
            }
            writeln!(out, "imported in {}", human(started.elapsed()))?;
        }
        ImageCommand::List => {
            writeln!(out, "{:<50} {:<20} {:>10}", "IMAGE", "ID", "SIZE")?;
            for image in images.list() {
                for tag in &image.tags {
                    let id = image.id.to_string();
                    let id = id.trim_start_matches("sha256:");
                    writeln!(out, "{tag:<50} {:<20} {:>10}", id.get(..12).unwrap_or(id), size(image.size))?;
                }
            }
        }
        ImageCommand::Remove { name } => {
            images.remove(&name).await?;
            writeln!(out, "removed {name}")?;
        }
        ImageCommand::Pull { name, creds } => {
            let credentials = creds.as_deref().map(|text| {
                let (username, password) = text.split_once(':').unwrap_or((text, ""));
                Credentials::Basic { username: username.to_owned(), password: password.to_owned() }
            });
            let image = images.pull(&name, credentials.as_ref()).await?;
            writeln!(out, "{}  {}", image.id, names(&image))?;
        }
    }
    Ok(())
}

fn names(image: &runtime::StoredImage) -> String {
    image.tags.iter().cloned().collect::<Vec<_>>().join(" ")
}

fn size(bytes: u64) -> String {
    const MEBI: f64 = 1024.0 * 1024.0;
    // Precise enough for people.
    #[allow(clippy::cast_precision_loss)]
    let mebibytes = bytes as f64 / MEBI;
    format!("{mebibytes:.1} MiB")
}
