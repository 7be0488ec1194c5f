//! Images from archives: every kind of entry lands where it should, and no archive reaches outside its layer.

#![allow(clippy::indexing_slicing)]

#[path = "support/archive.rs"]
mod archive;
mod support;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use archive::{Layer, Packing};
use runtime::{Config, Digest, ImageLimits, Runtime, StoredImage};
use serde_json::json;
use support::*;

struct Library {
    runtime: Arc<Runtime>,
    directory: Arc<Scratch>,
}

impl Library {
    async fn open() -> Result<Self> {
        let directory = Arc::new(Scratch::new()?);
        Ok(Self { runtime: Runtime::open(config(directory.path())).await?, directory })
    }

    async fn with_limits(image_limits: ImageLimits) -> Result<Self> {
        let directory = Arc::new(Scratch::new()?);
        let config = Config { image_limits, ..config(directory.path()) };
        Ok(Self { runtime: Runtime::open(config).await?, directory })
    }

    /// As another process would find it.
    async fn reopen(&self) -> Result<Self> {
        let directory = self.directory.clone();
        Ok(Self { runtime: Runtime::open(config(directory.path())).await?, directory })
    }

    async fn import(&self, archive: Vec<u8>) -> Result<StoredImage> {
        let path = self.directory.path().join("archive.tar");
        std::fs::write(&path, archive)?;
        self.runtime.images().import(&path).await?.pop().context("no image")
    }

    fn layer(&self, image: &StoredImage, n: usize) -> PathBuf {
        self.directory.path().join("images/layers").join(image.layers[n].hex()).join("fs")
    }

    fn layer_count(&self) -> Result<usize> {
        Ok(std::fs::read_dir(self.directory.path().join("images/layers"))?.count())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_unpacked_with_everything_an_archive_can_say() -> Result<()> {
    let library = Library::open().await?;
    let base = Layer::new()
        .directory("etc/", 0o700)?
        .file("etc/old", 0o644, "old")?
        .file("etc/gone", 0o644, "gone")?
        .directory("opt/deep/", 0o755)?
        .file("opt/deep/below", 0o644, "below")?
        .symlink("bin", "usr/bin")?
        .directory("usr/bin/", 0o755)?
        .attributed("attributed", "user.note", b"kept")?
        .pack(Packing::Gzip)?;
    let top = Layer::new()
        .file("etc/.wh.gone", 0, "")?
        .file("opt/.wh..wh..opq", 0, "")?
        .file("opt/new", 0o600, "new")?
        .file("bin/tool", 0o4755, "tool")?
        .hard_link("etc/linked", "etc/old")?
        .owned("home/user/file", 1000, "mine")?
        .pack(Packing::Zstd)?;
    let image = library.import(archive::oci("example.com/a:1", &[base, top], json!({ "Cmd": ["/x"] }))?).await?;
    assert_eq!(image.tags.first().context("no tag")?, "example.com/a:1");
    assert_eq!(image.config.cmd.as_deref(), Some(&["/x".to_owned()][..]));
    let (base, top) = (library.layer(&image, 0), library.layer(&image, 1));
    assert_eq!(std::fs::metadata(base.join("etc"))?.mode() & 0o7777, 0o700);
    assert_eq!(std::fs::metadata(base.join("etc/old"))?.mtime(), 1_700_000_000);
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(base.join("attributed"), "user.note", &mut value)?;
    assert_eq!(&value[..length], b"kept");
    let whiteout = std::fs::symlink_metadata(top.join("etc/gone"))?;
    assert_eq!((whiteout.mode() & 0o170000, whiteout.rdev()), (0o020000, 0), "a whiteout is a device 0:0");
    // A directory that the upper layer only touches keeps its mode.
    assert_eq!(std::fs::metadata(top.join("etc"))?.mode() & 0o7777, 0o700);
    assert_eq!(std::fs::read_to_string(top.join("opt/new"))?, "new");
    let below = std::fs::symlink_metadata(top.join("opt/deep"))?;
    assert_eq!((below.mode() & 0o170000, below.rdev()), (0o020000, 0), "what an opaque directory hides");
    assert_eq!(std::fs::read_to_string(top.join("usr/bin/tool"))?, "tool", "through the lower layer's link");
    assert!(!top.join("bin").exists());
    assert_eq!(std::fs::metadata(top.join("usr/bin/tool"))?.mode() & 0o7777, 0o4755);
    assert_eq!(std::fs::metadata(top.join("etc/linked"))?.ino(), std::fs::metadata(top.join("etc/old"))?.ino());
    assert_eq!(std::fs::metadata(top.join("home/user/file"))?.uid(), 1000);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_archive_reaches_outside_its_layer() -> Result<()> {
    let library = Library::open().await?;
    // Link targets in a plain header are short, so this path must be.
    let outside_directory = tempfile::tempdir_in("/tmp")?;
    let outside = outside_directory.path();
    let target = outside.display().to_string();
    let up = "../".repeat(20);
    let escapes = [
        Layer::new().file("../escaped", 0o644, "x")?,
        Layer::new().symlink("link", &target)?.file("link/escaped", 0o644, "x")?,
        Layer::new().symlink("link", &format!("{up}{target}"))?.file("link/escaped", 0o644, "x")?,
        Layer::new().hard_link("passwd", &format!("{up}etc/passwd"))?,
        Layer::new().symlink("link", "/etc")?.hard_link("passwd", "link/hostname")?,
        Layer::new().device("fake-whiteout")?,
    ];
    for (n, layer) in escapes.into_iter().enumerate() {
        let archive = archive::oci(&format!("example.com/evil:{n}"), &[layer.pack(Packing::Plain)?], json!({}))?;
        // Refused, or kept inside: both are safe.
        if let Ok(image) = library.import(archive).await {
            assert!(!library.layer(&image, 0).join("passwd").exists(), "case {n}");
        }
        assert_eq!(std::fs::read_dir(outside)?.count(), 0, "case {n}");
        assert!(!Path::new("/escaped").exists() && !library.directory.path().join("escaped").exists(), "case {n}");
    }
    let forged = Layer::new().attributed("file", "trusted.overlay.opaque", b"y")?.pack(Packing::Plain)?;
    let image = library.import(archive::oci("example.com/forged:1", &[forged], json!({}))?).await?;
    assert!(
        rustix::fs::getxattr(library.layer(&image, 0).join("file"), "trusted.overlay.opaque", &mut [0; 8]).is_err()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_not_what_it_says_is_refused() -> Result<()> {
    let library = Library::open().await?;
    let (_, bytes) = Layer::new().file("a", 0o644, "a")?.pack(Packing::Gzip)?;
    let (other, _) = Layer::new().file("b", 0o644, "b")?.pack(Packing::Gzip)?;
    let refused = library
        .import(archive::oci("example.com/a:1", &[(other, bytes)], json!({}))?)
        .await
        .err()
        .context("imported")?;
    assert!(refused.to_string().contains("its configuration says"), "{refused}");
    let sparse = Layer::new().extended("file", "GNU.sparse.major", b"1")?.pack(Packing::Plain)?;
    let refused = library.import(archive::oci("example.com/a:1", &[sparse], json!({}))?).await.err();
    assert!(refused.context("imported")?.to_string().contains("not supported"));
    assert_eq!(library.layer_count()?, 0);
    assert!(library.runtime.images().list().is_empty());
    let nothing = library.import(b"not an archive".repeat(100)).await.err().context("imported")?;
    assert!(nothing.to_string().contains("cannot read") || nothing.to_string().contains("neither"), "{nothing}");
    Ok(())
}

/// `.wh.` alone, `.wh..` and `.wh...` would hide the directory they are in or the one above it.
#[tokio::test(flavor = "multi_thread")]
async fn a_whiteout_hides_nothing_but_an_entry_of_its_directory() -> Result<()> {
    let library = Library::open().await?;
    let base = || {
        let layer = Layer::new().file("a/keep", 0o644, "keep")?.file("a/b/keep", 0o644, "keep")?;
        layer.file("a/b/..gone", 0o644, "gone")?.pack(Packing::Plain)
    };
    for name in [".wh.", "a/.wh.", "a/b/.wh..", "a/b/.wh...", ".wh...", "a/b/.wh..gone/../.wh..."] {
        let top = Layer::new().file(name, 0o644, "")?.pack(Packing::Plain)?;
        let refused = library.import(archive::oci("example.com/a:1", &[base()?, top], json!({}))?).await;
        let refused = refused.err().with_context(|| format!("{name} was imported"))?.to_string();
        assert!(
            refused.contains("a whiteout must name an entry") || refused.contains("leads out"),
            "{name}: {refused}"
        );
        assert_eq!(library.layer_count()?, 1, "{name}");
    }
    let top = Layer::new().file("a/b/.wh...gone", 0o644, "")?.pack(Packing::Plain)?;
    let image = library.import(archive::oci("example.com/a:1", &[base()?, top], json!({}))?).await?;
    let whiteout = std::fs::symlink_metadata(library.layer(&image, 1).join("a/b/..gone"))?;
    assert_eq!((whiteout.mode() & 0o170000, whiteout.rdev()), (0o020000, 0));
    assert!(!library.layer(&image, 1).join("a/keep").exists(), "nothing else is hidden");
    assert_eq!(std::fs::read_to_string(library.layer(&image, 0).join("a/b/keep"))?, "keep");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_beyond_the_limits_are_refused_and_leave_nothing_behind() -> Result<()> {
    let limits = ImageLimits { layer_max_bytes: 1 << 20, layer_max_entries: 10 };
    let library = Library::with_limits(limits).await?;
    let deep = |levels: usize| "d/".repeat(levels) + "file";
    let cases = [
        (Layer::new().file("fits", 0o644, &"x".repeat(1 << 19))?, None),
        (Layer::new().file("large", 0o644, &"x".repeat(2 << 20))?, Some("--image-layer-max-size")),
        (Layer::new().file(&deep(9), 0o644, "")?, None),
        // Directories that the archive does not list are made all the same.
        (Layer::new().file(&deep(10), 0o644, "")?, Some("--image-layer-max-entries")),
    ];
    let mut fitting = 0;
    for (n, (layer, want)) in cases.into_iter().enumerate() {
        for packing in [Packing::Gzip, Packing::Zstd] {
            let name = format!("example.com/case:{n}");
            let layer = layer.clone().pack(packing)?;
            match (library.import(archive::oci(&name, &[layer], json!({}))?).await, want) {
                (Ok(_), None) => (),
                (Err(error), Some(want)) => assert!(error.to_string().contains(want), "case {n}: {error}"),
                (got, want) => anyhow::bail!("case {n}: {got:?} instead of {want:?}"),
            }
        }
        fitting += usize::from(want.is_none());
        assert_eq!(library.layer_count()?, fitting, "case {n}");
        assert_eq!(std::fs::read_dir(library.directory.path().join("images/tmp"))?.count(), 0, "case {n}");
    }
    let bomb = Layer::new().file("bomb", 0o644, &"x".repeat(2 << 20))?.pack(Packing::Plain)?.1;
    let refused = library.import(zstd::encode_all(bomb.as_slice(), 1)?).await.err().context("imported")?;
    assert!(refused.to_string().contains("the archive is larger than"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn images_share_layers_and_take_them_along_when_the_last_one_goes() -> Result<()> {
    let library = Library::open().await?;
    let base = || Layer::new().file("base", 0o644, "base").and_then(|l| l.pack(Packing::Plain));
    let one = library.import(archive::docker("one:1", &[base()?], json!({}))?).await?;
    let top = Layer::new().file("top", 0o644, "top")?.pack(Packing::Gzip)?;
    let two = library.import(archive::docker("two:1", &[base()?, top], json!({}))?).await?;
    assert_eq!(one.layers[0], two.layers[0]);
    assert_eq!(library.layer_count()?, 2);
    let images = library.runtime.images();
    assert_eq!(images.find("one:1").context("not found")?.id, one.id);
    assert_eq!(images.find("docker.io/library/two:1").context("not found")?.id, two.id);
    assert_eq!(images.find(&two.id.to_string()).context("not found")?.id, two.id);
    images.remove("two:1").await?;
    assert_eq!(library.layer_count()?, 1);
    images.remove(&one.id.to_string()).await?;
    assert_eq!(library.layer_count()?, 0);
    assert!(images.remove("one:1").await.is_err_and(|e| e.to_string().contains("not found")));
    // A tag moves to the image that was given it last, also across a restart.
    library.import(archive::docker("tag:1", &[base()?], json!({}))?).await?;
    let moved = library.import(archive::docker("tag:1", &[base()?], json!({ "Cmd": ["/new"] }))?).await?;
    let again = Runtime::open(config(library.directory.path())).await?;
    assert_eq!(again.images().find("tag:1").context("not found")?.id, moved.id);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_in_the_store_is_imported_again() -> Result<()> {
    let library = Library::open().await?;
    let base = Layer::new().file("base", 0o644, "base")?.pack(Packing::Plain)?;
    let top = Layer::new().file("top", 0o644, "top")?.pack(Packing::Plain)?;
    let archive = archive::docker("a:1", &[base, top], json!({}))?;
    let image = library.import(archive.clone()).await?;
    let other = Layer::new().file("other", 0o644, "other")?.pack(Packing::Plain)?;
    library.import(archive::docker("b:1", &[other], json!({}))?).await?;
    let store = library.directory.path().join("images");
    let record = library.layer(&image, 1).with_file_name("layer.json");
    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    for damage in [|_: &[u8]| Vec::new(), half, |_: &[u8]| vec![0; 100], |_: &[u8]| br#"{"version":9}"#.to_vec()] {
        // The index: no image is known, but the layers are.
        std::fs::write(store.join("index.json"), damage(&std::fs::read(store.join("index.json"))?))?;
        let library = library.reopen().await?;
        assert!(library.runtime.images().list().is_empty());
        assert_eq!(library.layer_count()?, 3);
        library.import(archive.clone()).await?;
        // A layer: it goes, and the image with it.
        std::fs::write(&record, damage(&std::fs::read(&record)?))?;
        let library = library.reopen().await?;
        assert!(library.runtime.images().find("a:1").is_none());
        assert_eq!(library.layer_count()?, 2);
        assert_eq!(library.import(archive.clone()).await?.id, image.id);
        assert_eq!(std::fs::read_to_string(library.layer(&image, 1).join("top"))?, "top");
    }
    assert_eq!(std::fs::read_dir(store.join("damaged"))?.count(), 4);
    // What a crash may leave: a layer without record. But before there were such records the index had them.
    std::fs::create_dir_all(store.join("layers").join(Digest::of(b"crashed").hex()).join("fs"))?;
    std::fs::remove_file(&record)?;
    let library = library.reopen().await?;
    assert_eq!(library.layer_count()?, 3);
    assert_eq!(library.runtime.images().find("a:1").context("not found")?.id, image.id);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_image_runs_as_its_configuration_says() -> Result<()> {
    let bed = Bed::start().await?;
    let passwd = "root:x:0:0::/root:/x\napp:x:1234:1234::/home/app:/x\n";
    let base = Layer::new().file("etc/passwd", 0o644, passwd)?.copy("helper", HELPER.as_ref())?.pack(Packing::Plain)?;
    let process = json!({ "User": "app", "Env": ["PATH=/", "FROM=image"], "Entrypoint": ["helper"], "Cmd": ["env"], "WorkingDir": "/work" });
    let path = bed.directory.path().join("image.tar");
    std::fs::write(&path, archive::oci("example.com/app:1", &[base], process)?)?;
    bed.runtime.images().import(&path).await?;
    let sandbox = bed.sandbox("app").await?;
    let mut config = container("main", &[]);
    config.image = Some(cri::v1::ImageSpec { image: "example.com/app:1".to_owned(), ..Default::default() });
    let id = bed.run_with(&sandbox, config).await?;
    let status = bed.ended(&id).await?;
    let output = log(&status)?;
    assert!(output.contains("FROM=image") && output.contains("HOME=/home/app"), "{output}");
    assert_eq!(status.user.and_then(|u| u.linux).context("no user")?.uid, 1234);
    // Removing the image does not pull the ground from under a container that stands on it.
    bed.runtime.images().remove("example.com/app:1").await?;
    assert_eq!(std::fs::read_dir(bed.directory.path().join("images/layers"))?.count(), 2);
    bed.runtime.as_ref().remove_pod(&sandbox).await?;
    assert_eq!(std::fs::read_dir(bed.directory.path().join("images/layers"))?.count(), 1);
    bed.finish().await
}

/// Short for what the kubelet does in two calls.
trait RemovePod {
    async fn remove_pod(&self, id: &str) -> Result<()>;
}

impl RemovePod for Runtime {
    async fn remove_pod(&self, id: &str) -> Result<()> {
        cri::Cri::remove_pod_sandbox(self, cri::v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() }).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_itself_becomes_an_image_at_once() -> Result<()> {
    let library = Library::open().await?;
    add_helper(&library.runtime).await?;
    let begun = std::time::Instant::now();
    add_helper(&library.runtime).await?;
    let again = begun.elapsed();
    println!("unchanged: {again:?}");
    assert!(again < std::time::Duration::from_millis(100), "{again:?}");
    let image = library.runtime.images().find(IMAGE).context("not found")?;
    assert!(image.pinned && library.runtime.images().list().len() == 1);
    assert_eq!(library.runtime.images().pull(IMAGE, None).await?.id, image.id, "pulled again");
    let missing = library.runtime.images().pull("ferry.local/absent:1", None).await.err().context("pulled")?;
    assert!(missing.to_string().contains("not found"), "{missing}");
    Ok(())
}
