//! Starts one container: its image, its configuration, create, start, postStart hook.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use client::Drain;
use cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, KeyValue, LinuxContainerConfig, Mount,
    PodSandboxConfig, Signal, StartContainerRequest,
};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::kill::{self, Victim};
use super::observed::Observed;
use super::plan::Cause;
use super::{hooks, labels};
use crate::budget::Budget;
use crate::context::{Context, container_reference};
use crate::env::{self, Variables};
use crate::expand::expand;
use crate::fields::Facts;
use crate::images::{Present, Wanted};
use crate::volumes::{self, MountedVolumes};
use crate::{dns, resources, runtime_class, security, spec};

/// Why a container did not start: the waiting reason and message of its status.
#[derive(Debug, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct StartError {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) retry_at: Option<jiff::Timestamp>,
    pub(crate) cancelled: bool,
}

impl StartError {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, retry_at: None, cancelled: false }
    }
}

pub(crate) struct Start<'a> {
    pub(crate) context: &'a Context,
    pub(crate) pod: &'a Pod,
    pub(crate) observed: &'a Observed,
    pub(crate) sandbox_id: &'a str,
    pub(crate) sandbox: &'a PodSandboxConfig,
    pub(crate) volumes: &'a MountedVolumes,
    pub(crate) ending: &'a Drain,
}

fn annotations(pod: &Pod, container: &Container, attempt: u32, log_max_bytes: u64) -> BTreeMap<String, String> {
    let mut all = labels::container_annotations(pod, container, attempt);
    all.insert(cri::LOG_MAX_SIZE.to_owned(), log_max_bytes.to_string());
    all
}

impl Start<'_> {
    pub(crate) async fn run(&self, container: &Container) -> Result<(), StartError> {
        let reference = container_reference(self.pod, &container.name);
        let failed = |reason: &'static str, message: String| {
            self.context.recorder.warning(&reference, "Failed", format!("Error: {message}"));
            StartError::new(reason, message)
        };
        let secrets = self.pull_secrets().await;
        let wanted = Wanted { pod: self.pod, container, secrets: &secrets, sandbox: self.sandbox, ending: self.ending };
        let image = self.context.images.ensure(&wanted).await.map_err(|error| {
            if !error.cancelled {
                self.context.recorder.warning(&reference, "Failed", format!("Error: {}", error.reason));
            }
            StartError {
                reason: error.reason,
                message: error.message,
                retry_at: error.retry_at,
                cancelled: error.cancelled,
            }
        })?;
        let attempt = self.attempt(container);
        let config = match self.config(container, &image, attempt).await {
            Ok(config) => config,
            Err(message) => return Err(failed("CreateContainerConfigError", message)),
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: self.sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(self.sandbox.clone()),
        };
        let created = self.context.cri.create_container(request).await;
        let id = created.map_err(|status| failed("CreateContainerError", status.message().to_owned()))?.container_id;
        self.context.recorder.normal(&reference, "Created", "Container created".to_owned());
        let started = self.context.cri.start_container(StartContainerRequest { container_id: id.clone() }).await;
        started.map_err(|status| failed("RunContainerError", status.message().replace(&id, &container.name)))?;
        self.context.recorder.normal(&reference, "Started", "Container started".to_owned());
        self.post_start(container, &id).await
    }

    async fn post_start(&self, container: &Container, id: &str) -> Result<(), StartError> {
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let pod_ip = self.context.pod_ip(self.pod, self.observed);
        let run = hooks::run(self.context.cri.as_ref(), self.pod, container, id, &pod_ip, hook);
        let Some(Err(message)) = self.ending.run_until_cancelled(run).await else { return Ok(()) };
        let reference = container_reference(self.pod, &container.name);
        self.context.recorder.warning(&reference, "FailedPostStartHook", "PostStartHook failed".to_owned());
        let victim = Victim { id, container, message: "FailedPostStartHook", cause: Cause::Other, grace: None };
        if let Err(status) = kill::container(self.context, self.pod, &victim, &pod_ip, None).await {
            tracing::warn!(container = container.name, error = %status, "container with a failed hook could not be killed");
        }
        Err(StartError::new("PostStartHookError", message))
    }

    /// A secret that does not exist is not fatal: the image may be public, or here already.
    async fn pull_secrets(&self) -> Vec<std::sync::Arc<k8s_openapi::api::core::v1::Secret>> {
        let mut found = Vec::new();
        for reference in spec::spec(self.pod).image_pull_secrets.iter().flatten() {
            match self.context.sources.secret(spec::namespace(self.pod), &reference.name, true).await {
                Ok(Some(secret)) => found.push(secret),
                Ok(None) | Err(_) => {
                    let message = format!(
                        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                        reference.name
                    );
                    let pod = crate::context::pod_reference(self.pod);
                    self.context.recorder.warning(&pod, "FailedToRetrieveImagePullSecret", message);
                }
            }
        }
        found
    }

    /// One more than the last run; where the runtime has forgotten it, what the logs tell.
    fn attempt(&self, container: &Container) -> u32 {
        match self.observed.latest(&container.name) {
            Some(seen) => seen.restart_count + 1,
            None => attempts_in_logs(&self.context.pod_log_dir(self.pod).join(&container.name)),
        }
    }

    async fn config(&self, container: &Container, image: &Present, attempt: u32) -> Result<ContainerConfig, String> {
        let (context, pod) = (self.context, self.pod);
        let facts = context.facts(pod, self.observed);
        let mut budget = Budget::of_process();
        let env = self.environment(container, &facts, &mut budget).await?;
        let target = self.target(container)?;
        security::verify_non_root(pod, container, &image.user).map_err(|error| error.to_string())?;
        let mut security = security::of_container(pod, container, &image.user, target.as_deref())
            .map_err(|error| error.to_string())?;
        if let Some(profile) = security.seccomp.as_mut().filter(|profile| !profile.localhost_ref.is_empty()) {
            let folder = context.root_dir.join(security::SECCOMP_DIR);
            profile.localhost_ref = folder.join(&profile.localhost_ref).display().to_string();
        }
        let pod_dir = context.pod_dir(spec::uid(pod));
        let can = self.can_mount_recursively_read_only(container).await;
        let mut mounts =
            volumes::container_mounts(&pod_dir, container, self.volumes, &env, can).map_err(|e| e.to_string())?;
        self.add_hosts(&pod_dir, container, &facts, &mut mounts).map_err(|error| format!("hosts file: {error}"))?;
        add_termination_log(&pod_dir, container, &mut mounts).map_err(|error| format!("termination log: {error}"))?;
        let logs = context.pod_log_dir(pod).join(&container.name);
        std::fs::create_dir_all(logs).map_err(|error| {
            format!("create container log directory for container {} failed: {error}", container.name)
        })?;
        let mut words = |words: &Option<Vec<String>>| -> Result<Vec<String>, String> {
            let expanded = words.iter().flatten().map(|word| expand(word, &mut budget, |name| env.get(name).cloned()));
            expanded.collect::<Result<_, _>>().map_err(|error| error.to_string())
        };
        Ok(ContainerConfig {
            metadata: Some(ContainerMetadata { name: container.name.clone(), attempt }),
            image: Some(ImageSpec {
                image: image.id.clone(),
                user_specified_image: container.image.clone().unwrap_or_default(),
                ..Default::default()
            }),
            command: words(&container.command)?,
            args: words(&container.args)?,
            working_dir: container.working_dir.clone().unwrap_or_default(),
            envs: env.iter().map(|(key, value)| KeyValue { key: key.clone(), value: value.clone().into() }).collect(),
            mounts,
            labels: labels::container_labels(pod, container),
            annotations: annotations(pod, container, attempt, context.log_max_bytes),
            log_path: format!("{}/{attempt}.log", container.name),
            stdin: container.stdin == Some(true),
            stdin_once: container.stdin_once == Some(true),
            tty: container.tty == Some(true),
            linux: Some(LinuxContainerConfig {
                resources: Some(resources::of_container(pod, container, context.memory)),
                security_context: Some(security),
            }),
            stop_signal: stop_signal(container) as i32,
            ..Default::default()
        })
    }

    async fn can_mount_recursively_read_only(&self, container: &Container) -> bool {
        if !volumes::asks_recursive_read_only(container) {
            return false;
        }
        let handler = runtime_class::handler(self.pod, &self.context.runtime_classes).await.unwrap_or_default();
        runtime_class::features(self.context.cri.as_ref(), &handler).await.recursive_read_only_mounts
    }

    async fn environment(
        &self,
        container: &Container,
        facts: &Facts,
        budget: &mut Budget,
    ) -> Result<Variables, String> {
        self.context.services.synced().await;
        let services = self.context.services.list();
        let variables = env::variables(self.pod, container, &services, &self.context.sources, facts, budget).await;
        variables.map_err(|error| error.to_string())
    }

    /// The container whose processes an ephemeral container wants to see.
    fn target(&self, container: &Container) -> Result<Option<String>, String> {
        let mut ephemeral = spec::spec(self.pod).ephemeral_containers.iter().flatten();
        let own = ephemeral.find(|ephemeral| ephemeral.name == container.name);
        let Some(name) = own.and_then(|own| own.target_container_name.as_deref()).filter(|name| !name.is_empty())
        else {
            return Ok(None);
        };
        let seen = self.observed.latest(name).ok_or_else(|| format!("unable to find target container {name}"))?;
        Ok(Some(seen.id.clone()))
    }

    fn add_hosts(
        &self,
        pod_dir: &Path,
        container: &Container,
        facts: &Facts,
        mounts: &mut Vec<Mount>,
    ) -> std::io::Result<()> {
        let own = container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == "/etc/hosts");
        if own || facts.pod_ips.is_empty() {
            return Ok(());
        }
        let path = pod_dir.join("etc-hosts");
        let text = if spec::is_host_network(self.pod) {
            dns::host_network_hosts(self.pod, &std::fs::read_to_string("/etc/hosts").unwrap_or_default())
        } else {
            dns::hosts(self.pod, &facts.pod_ips, &self.context.cluster_domain)
        };
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        let host_path = path.display().to_string();
        mounts.push(Mount { container_path: "/etc/hosts".to_owned(), host_path, ..Default::default() });
        Ok(())
    }
}

/// A fresh file for each run, so that one run's words are never taken for the next one's.
fn add_termination_log(pod_dir: &Path, container: &Container, mounts: &mut Vec<Mount>) -> std::io::Result<()> {
    let Some(path) = container.termination_message_path.as_deref().filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let folder = pod_dir.join("containers").join(&container.name);
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(uuid::Uuid::new_v4().simple().to_string().get(..8).unwrap_or("message"));
    std::fs::write(&file, "")?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666))?;
    let host_path = file.display().to_string();
    mounts.push(Mount { container_path: path.to_owned(), host_path, ..Default::default() });
    Ok(())
}

fn attempts_in_logs(folder: &Path) -> u32 {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = names.filter_map(|entry| entry.file_name().to_str()?.split_once(".log")?.0.parse::<u32>().ok());
    numbers.max().map_or(0, |last| last + 1)
}

fn stop_signal(container: &Container) -> Signal {
    let name = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    name.and_then(|name| Signal::from_str_name(&name.replace('+', "PLUS").replace('-', "MINUS")))
        .unwrap_or(Signal::RuntimeDefault)
}
