//! The same requests to Ferry and to stock Kubernetes, and the same answers.
//!
//! `cases/NAME.yaml` holds requests, `cases/NAME.answers` what stock v1.36 said to each, one line of JSON per request,
//! without what differs from run to run. `FERRY_ORACLE=KUBECONFIG cargo test -p apiserver --test differential` asks a
//! freshly started stock kube-apiserver instead and writes its answers down; `FERRY_CASE=NAME` takes one case alone.
//! A case whose first lines are `# --FLAG=VALUE` is for servers with these flags: it is only recorded when it is named.
//!
//! `differences.txt` names the answers that still differ, as `CASE NUMBER`. It may only shrink: an answer on it that is
//! the same must be taken off. `FERRY_DIFFERENCES=1` shows them all.

mod compare;
mod ferry;
mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

/// One request.
#[derive(Deserialize)]
struct Step {
    /// `POST /api/v1/namespaces/default/pods`
    #[serde(rename = "do")]
    line: String,
    #[serde(default)]
    with: Option<Value>,
    /// Content type [default: JSON]
    #[serde(rename = "as", default)]
    content_type: Option<String>,
    #[serde(default)]
    accept: Option<String>,
    /// Ask until the answer has this code, and this text in it: something is on its way.
    #[serde(default)]
    until: Option<u16>,
    #[serde(default)]
    showing: String,
    /// The version of what is answered has this name from now on: `{name}` in a later request is that version.
    #[serde(default)]
    remember: Option<String>,
}

/// Versions that have a name.
type Versions = BTreeMap<String, String>;

/// How long something may be on its way.
const ARRIVES: std::time::Duration = std::time::Duration::from_secs(20);

/// Sends a step, again and again where it says so.
async fn answer<F>(
    step: &Step,
    versions: &mut Versions,
    send: impl Fn(http::Request<Vec<u8>>) -> F,
) -> Result<(u16, Value)>
where
    F: Future<Output = Result<(u16, Value)>>,
{
    let begun = std::time::Instant::now();
    loop {
        let (code, body) = send(step.request(versions)?).await?;
        if let (Some(name), Some(version)) = (&step.remember, body.pointer("/metadata/resourceVersion")) {
            versions.insert(format!("{{{name}}}"), version.as_str().context("a version is text")?.to_owned());
        }
        if step.until.is_none_or(|wanted| wanted == code && body.to_string().contains(&step.showing)) {
            return Ok((code, body));
        }
        ensure!(begun.elapsed() < ARRIVES, "{}: {code} {body}", step.line);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

impl Step {
    fn request(&self, versions: &Versions) -> Result<http::Request<Vec<u8>>> {
        let line = versions.iter().fold(self.line.clone(), |line, (name, version)| line.replace(name, version));
        let (method, path) = line.split_once(' ').context("METHOD PATH")?;
        let mut request = http::Request::builder().method(method).uri(path);
        if let Some(accept) = &self.accept {
            request = request.header("accept", accept);
        }
        let Some(body) = &self.with else { return Ok(request.body(Vec::new())?) };
        let kind = self.content_type.as_deref().unwrap_or("application/json");
        Ok(request.header("content-type", kind).body(serde_json::to_vec(body)?)?)
    }
}

fn cases() -> Result<Vec<PathBuf>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/cases");
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    if let Some(only) = std::env::var_os("FERRY_CASE") {
        found.retain(|path| path.file_stem() == Some(&only));
    }
    found.sort();
    Ok(found)
}

/// What a case's server is started with beyond the usual.
type Flags = BTreeMap<String, String>;

fn read(case: &Path) -> Result<(Flags, Vec<Step>)> {
    let text = std::fs::read_to_string(case)?;
    let flags = text
        .lines()
        .map_while(|line| line.strip_prefix("# ")?.split_once('='))
        .filter(|(name, _)| name.starts_with("--"));
    let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let steps = serde_saphyr::from_str(&text).with_context(|| case.display().to_string())?;
    Ok((flags, steps))
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_stock() -> Result<()> {
    if let Some(kubeconfig) = std::env::var_os("FERRY_ORACLE") {
        return record(Path::new(&kubeconfig)).await;
    }
    let all = std::env::var_os("FERRY_DIFFERENCES").is_some();
    let known: BTreeSet<&str> = include_str!("differences.txt").lines().filter(|_| !all).collect();
    let (mut differences, mut mended, mut count) = (Vec::new(), Vec::new(), 0);
    for case in cases()? {
        let ((flags, steps), mut versions) = (read(&case)?, Versions::new());
        let ferry = ferry::Ferry::start(&flags).await?;
        let answers = std::fs::read_to_string(case.with_extension("answers")).context("not recorded yet")?;
        let answers: Vec<Value> = answers.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        // Recorded before a rule of normal form was added, they are still good.
        let answers: Vec<Value> = answers.into_iter().map(compare::normal).collect();
        ensure!(answers.len() == steps.len(), "{}: record the answers again", case.display());
        let name = case.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for (number, (step, wanted)) in steps.iter().zip(&answers).enumerate() {
            let (code, body) = answer(step, &mut versions, |request| ferry.send(request)).await?;
            let got = compare::normal(json!({ "code": code, "body": body }));
            let found = compare::compare(wanted, &got);
            let id = format!("{name} {}", number + 1);
            match (found.is_empty(), known.contains(id.as_str())) {
                (true, true) => mended.push(id),
                (false, false) => differences.push(format!("{id}: {}\n    {}", step.line, found.join("\n    "))),
                _ => (),
            }
            count += 1;
        }
    }
    ensure!(mended.is_empty(), "the same as stock's now, take them off differences.txt:\n{}", mended.join("\n"));
    let different = differences.len();
    ensure!(different == 0, "{different} of {count} answers differ (- stock, + Ferry):\n{}", differences.join("\n"));
    Ok(())
}

async fn record(kubeconfig: &Path) -> Result<()> {
    let oracle = oracle::Oracle::connect(kubeconfig).await?;
    for case in cases()? {
        let ((flags, steps), mut answers, mut versions) = (read(&case)?, String::new(), Versions::new());
        if !flags.is_empty() && std::env::var_os("FERRY_CASE").is_none() {
            continue;
        }
        for step in steps {
            let (code, body) = answer(&step, &mut versions, |request| oracle.send(request)).await?;
            let answer = compare::normal(json!({ "code": code, "body": body }));
            answers.push_str(&serde_json::to_string(&answer)?);
            answers.push('\n');
        }
        std::fs::write(case.with_extension("answers"), answers)?;
    }
    Ok(())
}
