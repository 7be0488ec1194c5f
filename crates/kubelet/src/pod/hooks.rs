//! Lifecycle hooks: after a container's start, before its stop.

use std::time::Duration;

use cri::v1::ExecSyncRequest;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::images::describe;
use crate::probes::http;
use crate::spec;

/// Runs the hook to its end; the error is the message for the container's status.
pub(crate) async fn run(
    cri: &dyn cri::Cri,
    pod: &Pod,
    container: &Container,
    id: &str,
    pod_ip: &str,
    hook: &LifecycleHandler,
) -> Result<(), String> {
    let (name, display) = (&container.name, spec::display(pod));
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = format!("[{}]", command.join(" "));
        let failed = |error: String, output: &[u8]| {
            let output = String::from_utf8_lossy(output);
            Err(format!(
                "Exec lifecycle hook ({shown}) for Container \"{name}\" in Pod \"{display}\" failed - error: {error}, message: {output:?}"
            ))
        };
        let request = ExecSyncRequest { container_id: id.to_owned(), cmd: command.clone(), timeout: 0 };
        return match cri.exec_sync(request).await {
            Ok(done) if done.exit_code == 0 => Ok(()),
            Ok(done) => {
                let error = format!(
                    "command '{}' exited with {}: {}",
                    command.join(" "),
                    done.exit_code,
                    String::from_utf8_lossy(&done.stderr)
                );
                failed(error, &[done.stdout, done.stderr].concat())
            }
            Err(status) => failed(describe(&status), &[]),
        };
    }
    if let Some(get) = &hook.http_get {
        let path = get.path.as_deref().unwrap_or_default();
        let failed = |error: String| {
            format!(
                "HTTP lifecycle hook ({path}) for Container \"{name}\" in Pod \"{display}\" failed - error: {error}"
            )
        };
        let target = http::target(get, container, pod_ip).map_err(|error| failed(error.to_string()))?;
        let target = http::Target { agent: "kube-lifecycle/1.36", ..target };
        return http::get(&target)
            .await
            .map(drop)
            .map_err(|error| failed(format!("Get \"{}\": {error}", http::url(&target))));
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    Err("Cannot run handler: invalid handler".to_owned())
}
