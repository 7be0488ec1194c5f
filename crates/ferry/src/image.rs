//! `ferry image`: the local image store from the command line, whether a cluster runs on it or not.
//!
//! A running runtime owns its store, so it is asked: by CRI for what CRI has, and on a socket of its own for imports, which
//! CRI lacks. (An image name or annotation that means a host file would let any pod read it.) Where none runs, the store is
//! opened here.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use cri::v1::{AuthConfig, ImageSpec, ListImagesRequest, PullImageRequest, RemoveImageRequest};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use runtime::Runtime;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::cli::{Image, ImageCommand};
use crate::node;
use crate::progress::human;

/// Sockets in a data directory's `run`.
const CRI_SOCKET: &str = "run/runtime.sock";
const IMPORT_SOCKET: &str = "run/import.sock";

enum Store {
    /// A runtime serves it.
    Served {
        cri: Box<cri::Remote>,
        import: PathBuf,
    },
    Own(Arc<Runtime>),
}

impl Store {
    async fn open(data_dir: &Path, limits: runtime::ImageLimits) -> Result<Self> {
        let endpoint = format!("unix://{}", data_dir.join(CRI_SOCKET).display());
        if let Ok(cri) = cri::Remote::connect(&endpoint).await {
            return Ok(Self::Served { cri: Box::new(cri), import: data_dir.join(IMPORT_SOCKET) });
        }
        let root = data_dir.join("runtime");
        let runtime = node::open_runtime(root.clone(), None, limits).await;
        Ok(Self::Own(runtime.with_context(|| format!("the image store in {} cannot be opened", root.display()))?))
    }

    fn cri(&self) -> &dyn cri::Cri {
        match self {
            Self::Served { cri, .. } => &**cri,
            Self::Own(runtime) => &**runtime,
        }
    }

    /// The names an archive brought.
    async fn import(&self, archive: &Path) -> Result<Vec<String>> {
        let archive = std::path::absolute(archive)?;
        match self {
            Self::Own(runtime) => import(runtime, &archive).await,
            Self::Served { import, .. } => ask(import, &archive).await,
        }
    }
}

pub(crate) async fn run(options: Image) -> Result<()> {
    let store = Store::open(&options.data_dir, options.limits.parse()?).await?;
    let spec = |name: String| Some(ImageSpec { image: name, ..ImageSpec::default() });
    let mut out = std::io::stdout();
    match options.command {
        ImageCommand::Import { archive } => {
            let started = Instant::now();
            for name in store.import(&archive).await? {
                writeln!(out, "imported {name}")?;
            }
            writeln!(out, "in {}", human(started.elapsed()))?;
        }
        ImageCommand::List => {
            let images = store.cri().list_images(ListImagesRequest::default()).await?.images;
            writeln!(out, "{:<50} {:<14} {:>10}", "IMAGE", "ID", "SIZE")?;
            let mut lines = Vec::new();
            for image in images {
                let id = image.id.trim_start_matches("sha256:");
                let id = id.get(..12).unwrap_or(id);
                let names = if image.repo_tags.is_empty() { &image.repo_digests } else { &image.repo_tags };
                lines.extend(names.iter().map(|name| format!("{name:<50} {id:<14} {:>10}", size(image.size))));
            }
            lines.sort();
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        ImageCommand::Remove { name } => {
            store.cri().remove_image(RemoveImageRequest { image: spec(name.clone()) }).await?;
            writeln!(out, "removed {name}")?;
        }
        ImageCommand::Pull { name, creds } => {
            let auth = creds.as_deref().map(|text| {
                let (username, password) = text.split_once(':').unwrap_or((text, ""));
                AuthConfig { username: username.to_owned(), password: password.to_owned(), ..AuthConfig::default() }
            });
            let request = PullImageRequest { image: spec(name.clone()), auth, ..PullImageRequest::default() };
            let pulled = store.cri().pull_image(request).await?;
            writeln!(out, "pulled {name} ({})", pulled.image_ref)?;
        }
    }
    Ok(())
}

async fn import(runtime: &Runtime, archive: &Path) -> Result<Vec<String>> {
    let images = runtime.images().import(archive).await;
    let images = images.with_context(|| format!("cannot import {}", archive.display()))?;
    Ok(images.into_iter().flat_map(|image| if image.tags.is_empty() { image.digests } else { image.tags }).collect())
}

/// Asks the running runtime to import a file of this machine.
async fn ask(socket: &Path, archive: &Path) -> Result<Vec<String>> {
    let stream = UnixStream::connect(socket).await.with_context(|| format!("cannot reach {}", socket.display()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let path = archive.to_str().context("the archive's path is not UTF-8")?.to_owned();
    let request = Request::post("/import").header("host", "localhost").body(Full::new(Bytes::from(path)))?;
    let response = sender.send_request(request).await?;
    let failed = !response.status().is_success();
    let text = String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()).into_owned();
    if failed {
        bail!("{text}");
    }
    Ok(text.lines().map(ToOwned::to_owned).collect())
}

/// Imports on request until drained. Only root reaches the socket.
pub(crate) async fn serve_imports(socket: PathBuf, runtime: Arc<Runtime>, drain: CancellationToken) -> Result<()> {
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            () = drain.cancelled() => break,
        };
        let runtime = runtime.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(runtime.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "import connection ended");
            }
        });
    }
    let _ = std::fs::remove_file(&socket);
    Ok(())
}

async fn answer(runtime: Arc<Runtime>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.into_body().collect().await?.to_bytes();
    let path = PathBuf::from(String::from_utf8_lossy(&path).into_owned());
    let (status, text) = match import(&runtime, &path).await {
        Ok(names) => (200, names.join("\n")),
        Err(error) => (422, format!("{error:#}")),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    Ok(response)
}

fn size(bytes: u64) -> String {
    const MEBI: u64 = 1 << 20;
    format!("{}.{} MiB", bytes / MEBI, bytes % MEBI * 10 / MEBI)
}
