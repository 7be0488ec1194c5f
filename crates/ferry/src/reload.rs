//! Takes certificates and authorities over from their files when these change, while they are in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kubelet::FolderWatch;
use tokio_util::sync::CancellationToken;

use crate::alone::identity;
use crate::renewal::Shown;

/// Who writes a certificate writes its key too: both are read when both are there.
const SETTLE: Duration = Duration::from_millis(100);
/// After which files that cannot be watched are looked at again.
const RETRY: Duration = Duration::from_secs(60);

/// Uses what the files say now.
pub(crate) type Take = Box<dyn Fn() -> Result<()> + Send>;

/// What is in these two files, now and whenever they change.
pub(crate) fn shown(certificate: &Path, key: &Path, drain: &CancellationToken) -> Result<Arc<Shown>> {
    let (certificate, key) = (certificate.to_owned(), key.to_owned());
    let shown = Shown::new(&identity(&certificate, &key)?)
        .with_context(|| format!("cannot use {} with {}", certificate.display(), key.display()))?;
    let (paths, current) = (vec![certificate.clone(), key.clone()], shown.clone());
    follow(paths, Box::new(move || current.show(&identity(&certificate, &key)?)), drain.clone());
    Ok(shown)
}

/// Calls `take` once soon and then whenever one of the files has other contents, until drained. What cannot be used is left alone: what
/// was in use before goes on.
pub(crate) fn follow(paths: Vec<PathBuf>, take: Take, drain: CancellationToken) {
    tokio::spawn(async move {
        let mut known = None;
        loop {
            // Watched before it is read, so that no change falls in between; and anew each time, since links may lead elsewhere now.
            let watch = watch(&paths);
            match contents(&paths) {
                Ok(now) if known.as_ref() == Some(&now) => (),
                now => match now.and_then(|now| take().map(|()| now)) {
                    Ok(now) => {
                        known = Some(now);
                        tracing::info!(?paths, "what is in these files is in use");
                    }
                    Err(error) => tracing::warn!(?paths, error = format!("{error:#}"), "changed files cannot be used"),
                },
            }
            let changed = async {
                match watch {
                    Ok(watch) if watch.changed().await.is_ok() => tokio::time::sleep(SETTLE).await,
                    _ => tokio::time::sleep(RETRY).await,
                }
            };
            if drain.run_until_cancelled(changed).await.is_none() {
                return;
            }
        }
    });
}

/// Where the files are, and where links lead.
fn watch(paths: &[PathBuf]) -> std::io::Result<FolderWatch> {
    let folder = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let real = paths.iter().filter_map(|path| path.canonicalize().ok());
    let mut folders: Vec<PathBuf> = paths.iter().cloned().chain(real).map(|path| folder(&path)).collect();
    folders.sort_unstable();
    folders.dedup();
    let mut folders = folders.iter();
    let watch = FolderWatch::new(folders.next().map_or(Path::new("."), PathBuf::as_path))?;
    folders.try_for_each(|folder| watch.add(folder))?;
    Ok(watch)
}

fn contents(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    use super::*;
    use crate::pki::Pki;
    use crate::renewal::tests::connect;

    /// As pods see secrets: links through a folder that is exchanged as a whole.
    struct Mounted<'a>(&'a Path);

    impl Mounted<'_> {
        fn put(&self, version: &str, certificate: &str, key: &str) {
            let folder = self.0.join(version);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("tls.crt"), certificate).unwrap();
            std::fs::write(folder.join("tls.key"), key).unwrap();
            symlink(version, self.0.join("..new")).unwrap();
            std::fs::rename(self.0.join("..new"), self.0.join("..data")).unwrap();
        }
    }

    #[tokio::test]
    async fn changed_files_are_for_new_connections_and_open_ones_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(&dir.path().join("pki")).unwrap();
        let authority = pki.authorities().unwrap().remove(0);
        let made = ["one", "two", "three"].map(|name| pki.server(name, name, &["localhost"], &[]).unwrap());
        let folder = dir.path().join("mounted");
        std::fs::create_dir(&folder).unwrap();
        let mounted = Mounted(&folder);
        mounted.put("v1", &made[0].certificate, &made[0].key);
        for file in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{file}"), folder.join(file)).unwrap();
        }
        let (certificate, key, drain) = (folder.join("tls.crt"), folder.join("tls.key"), CancellationToken::new());
        let shown = Shown::new(&identity(&certificate, &key).unwrap()).unwrap();
        let (told, mut tries) = watch::channel(0);
        let (current, paths) = (shown.clone(), vec![certificate.clone(), key.clone()]);
        let take = move || {
            let taken = identity(&certificate, &key).and_then(|identity| current.show(&identity));
            told.send_modify(|tries| *tries += 1);
            taken
        };
        follow(paths, Box::new(take), drain.clone());
        tries.wait_for(|tries| *tries == 1).await.unwrap();
        let tls = crate::control_plane::serving_tls(&[], shown, &[]).unwrap();
        let (mut open, seen) = connect(tls.clone(), &authority).await;
        assert_eq!(seen, made[0].chain().unwrap()[0].as_ref());

        mounted.put("v2", &made[1].certificate, &made[1].key);
        tries.wait_for(|tries| *tries == 2).await.unwrap();
        assert_eq!(connect(tls.clone(), &authority).await.1, made[1].chain().unwrap()[0].as_ref());
        // A key that is not the certificate's, and then in place: the file that a link leads to is written.
        mounted.put("v3", &made[2].certificate, &made[1].key);
        tries.wait_for(|tries| *tries == 3).await.unwrap();
        assert_eq!(connect(tls.clone(), &authority).await.1, made[1].chain().unwrap()[0].as_ref());
        std::fs::write(folder.join("v3/tls.key"), &made[2].key).unwrap();
        tries.wait_for(|tries| *tries == 4).await.unwrap();
        assert_eq!(connect(tls, &authority).await.1, made[2].chain().unwrap()[0].as_ref());
        open.write_all(b"x").await.unwrap();
        assert_eq!(open.read_u8().await.unwrap(), b'x');
        drain.cancel();
    }
}
