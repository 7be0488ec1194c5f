//! What `/metrics` says, and what a browser of another origin is told.

mod support;

use anyhow::Result;
use support::Api;

async fn metrics(api: &Api) -> Result<String> {
    let (code, _, body) = api.call("GET /metrics", &[], "").await?;
    anyhow::ensure!(code == 200, "{code}");
    Ok(String::from_utf8(body.to_vec())?)
}

/// The value of the series with all these labels.
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let found = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let found = found.filter(|line| labels.iter().all(|label| line.contains(label)));
    found.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn requests_are_counted_by_what_they_asked_and_got() -> Result<()> {
    let api = Api::start().await?;
    let list = ["verb=\"LIST\"", "resource=\"pods\"", "scope=\"namespace\"", "code=\"200\""];
    let missing = ["verb=\"GET\"", "resource=\"pods\"", "scope=\"resource\"", "code=\"404\""];
    for _ in 0..3 {
        api.call("GET /api/v1/namespaces/default/pods", &[], "").await?;
    }
    api.call("GET /api/v1/namespaces/default/pods/nope", &[], "").await?;
    let text = metrics(&api).await?;
    assert_eq!(value(&text, "apiserver_request_total", &list), 3.0);
    assert_eq!(value(&text, "apiserver_request_total", &missing), 1.0);
    let labels = ["verb=\"LIST\"", "resource=\"pods\""];
    assert_eq!(value(&text, "apiserver_request_duration_seconds_count", &labels), 3.0);
    let all = ["verb=\"LIST\"", "resource=\"pods\"", "le=\"+Inf\""];
    assert_eq!(value(&text, "apiserver_request_duration_seconds_bucket", &all), 3.0);
    assert_eq!(value(&text, "apiserver_resource_objects", &["resource=\"namespaces\""]), 4.0);
    // The one that asks is under way.
    assert_eq!(value(&text, "apiserver_current_inflight_requests", &["request_kind=\"readOnly\""]), 1.0);
    Ok(())
}

/// Nobody fills the server's memory with series of their own.
#[tokio::test]
async fn odd_paths_make_no_series() -> Result<()> {
    let api = Api::start().await?;
    for path in ["/apis/made/up/one", "/api/v1/made-up", "/made-up", "/api/v1/pods/a/made-up-part"] {
        api.call(&format!("GET {path}"), &[], "").await?;
    }
    let text = metrics(&api).await?;
    assert!(!text.contains("made"), "{text}");
    Ok(())
}

/// A watch is under way for as long as somebody reads it.
#[tokio::test]
async fn watches_are_counted_while_they_last() -> Result<()> {
    let api = Api::start().await?;
    let open = |text: &str| {
        text.lines().find_map(|line| line.strip_prefix("apiserver_longrunning_requests ")).map(str::to_owned)
    };
    let watch = api.send("GET /api/v1/pods?watch=1", &[], "").await?;
    assert_eq!(open(&metrics(&api).await?).as_deref(), Some("1"));
    drop(watch);
    assert_eq!(open(&metrics(&api).await?).as_deref(), Some("0"));
    Ok(())
}

#[tokio::test]
async fn browsers_are_told_whether_their_page_may() -> Result<()> {
    let api = Api::start().await?;
    let (code, headers, _) = api.call("OPTIONS /api/v1/pods", &[("origin", "https://example.com")], "").await?;
    assert_eq!(code, 204);
    assert_eq!(headers["access-control-allow-origin"], "https://example.com");
    assert_eq!(headers["access-control-allow-methods"], "POST, GET, OPTIONS, PUT, DELETE, PATCH");
    let (code, headers, _) = api.call("GET /api/v1/pods", &[("origin", "https://example.com")], "").await?;
    assert_eq!((code, &headers["access-control-allow-credentials"]), (200, &"true".parse()?));
    let (_, headers, _) = api.call("GET /api/v1/pods", &[("origin", "https://example.com.attacker.net")], "").await?;
    assert!(!headers.contains_key("access-control-allow-origin"));
    Ok(())
}
