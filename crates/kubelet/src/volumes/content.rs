//! The files of ConfigMap, Secret, downward API and projected volumes.

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Secret, Volume,
};

use super::VolumeError;
use super::atomic::{File, Payload};
use super::token::Tokens;
use crate::budget::Budget;
use crate::fields::{self, Facts};
use crate::sources::Sources;
use crate::spec;

const DEFAULT_MODE: i32 = 0o644;
const TOKEN_MODE: u32 = 0o600;

pub(crate) struct Content<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) sources: &'a Sources,
    pub(crate) facts: &'a Facts,
    pub(crate) client: &'a kube::Client,
    pub(crate) now: jiff::Timestamp,
}

fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    u32::try_from(own.or(default).unwrap_or(DEFAULT_MODE)).unwrap_or(0o644) & 0o777
}

impl Content<'_> {
    /// `None` for volumes whose files are not the kubelet's.
    pub(crate) async fn of(
        &self,
        volume: &Volume,
        tokens: &mut Tokens,
        budget: &mut Budget,
    ) -> Result<Option<Payload>, VolumeError> {
        let namespace = spec::namespace(self.pod);
        if let Some(source) = &volume.config_map {
            let optional = source.optional == Some(true);
            let found = self.sources.config_map(namespace, &source.name, optional).await?;
            let data = found.as_deref().map(config_map_data).unwrap_or_default();
            return pick(&data, source.items.as_deref(), source.default_mode, optional, &source.name, budget).map(Some);
        }
        if let Some(source) = &volume.secret {
            let optional = source.optional == Some(true);
            let name = source.secret_name.as_deref().unwrap_or_default();
            let found = self.sources.secret(namespace, name, optional).await?;
            let data = found.as_deref().map(secret_data).unwrap_or_default();
            return pick(&data, source.items.as_deref(), source.default_mode, optional, name, budget).map(Some);
        }
        if let Some(source) = &volume.downward_api {
            return self.downward(source.items.as_deref().unwrap_or_default(), source.default_mode, budget).map(Some);
        }
        if let Some(source) = &volume.projected {
            return self.projected(&volume.name, source, tokens, budget).await.map(Some);
        }
        Ok(None)
    }

    fn downward(
        &self,
        items: &[DownwardAPIVolumeFile],
        default: Option<i32>,
        budget: &mut Budget,
    ) -> Result<Payload, VolumeError> {
        let mut payload = Payload::new();
        for item in items {
            let text = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => fields::field(self.pod, &field.field_path, self.facts)?,
                (None, Some(resource)) => fields::resource(self.pod, None, resource, self.facts)?,
                (None, None) => String::new(),
            };
            budget.take(text.len())?;
            payload.insert(item.path.clone(), File { data: text.into(), mode: mode(item.mode, default), owner: None });
        }
        Ok(payload)
    }

    async fn projected(
        &self,
        volume: &str,
        projected: &ProjectedVolumeSource,
        tokens: &mut Tokens,
        budget: &mut Budget,
    ) -> Result<Payload, VolumeError> {
        let namespace = spec::namespace(self.pod);
        let default = projected.default_mode;
        let mut payload = Payload::new();
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                let optional = source.optional == Some(true);
                let found = self.sources.config_map(namespace, &source.name, optional).await?;
                let data = found.as_deref().map(config_map_data).unwrap_or_default();
                payload.extend(pick(&data, source.items.as_deref(), default, optional, &source.name, budget)?);
            } else if let Some(source) = &source.secret {
                let optional = source.optional == Some(true);
                let found = self.sources.secret(namespace, &source.name, optional).await?;
                let data = found.as_deref().map(secret_data).unwrap_or_default();
                payload.extend(pick(&data, source.items.as_deref(), default, optional, &source.name, budget)?);
            } else if let Some(source) = &source.downward_api {
                payload.extend(self.downward(source.items.as_deref().unwrap_or_default(), default, budget)?);
            } else if let Some(source) = &source.service_account_token {
                let token = tokens.get(self.client, self.pod, volume, source, self.now).await?;
                let owner = only_user(self.pod);
                let fs_group = spec::spec(self.pod).security_context.as_ref().and_then(|context| context.fs_group);
                let mode = if owner.is_some() || fs_group.is_some() { TOKEN_MODE } else { mode(None, default) };
                payload.insert(source.path.clone(), File { data: token.into_bytes(), mode, owner });
            } else if source.cluster_trust_bundle.is_some() {
                return Err(VolumeError::Unsupported("projected clusterTrustBundle".to_owned()));
            } else if source.pod_certificate.is_some() {
                return Err(VolumeError::Unsupported("projected podCertificate".to_owned()));
            }
        }
        Ok(payload)
    }
}

/// The user that all containers run as, when they agree.
fn only_user(pod: &Pod) -> Option<u32> {
    let default = spec::spec(pod).security_context.as_ref().and_then(|context| context.run_as_user);
    let of = |c: &k8s_openapi::api::core::v1::Container| {
        c.security_context.as_ref().and_then(|context| context.run_as_user).or(default)
    };
    let mut users = spec::init_containers(pod).iter().chain(spec::containers(pod)).map(of);
    let first = users.next()??;
    if users.all(|user| user == Some(first)) { u32::try_from(first).ok() } else { None }
}

type Data = Vec<(String, Vec<u8>)>;

fn config_map_data(map: &ConfigMap) -> Data {
    let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    text.chain(map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()))).collect()
}

fn secret_data(secret: &Secret) -> Data {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

/// All keys under their names, or the chosen ones under chosen paths.
fn pick(
    data: &Data,
    items: Option<&[KeyToPath]>,
    default: Option<i32>,
    optional: bool,
    name: &str,
    budget: &mut Budget,
) -> Result<Payload, VolumeError> {
    let mut file = |bytes: &[u8], own| -> Result<File, VolumeError> {
        budget.take(bytes.len())?;
        Ok(File { data: bytes.to_vec(), mode: mode(own, default), owner: None })
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return data.iter().map(|(key, bytes)| Ok((key.clone(), file(bytes, None)?))).collect();
    };
    let mut payload = Payload::new();
    for item in items {
        match data.iter().find(|(key, _)| *key == item.key) {
            Some((_, bytes)) => {
                payload.insert(item.path.clone(), file(bytes, item.mode)?);
            }
            None if optional => (),
            None => return Err(VolumeError::Key { key: item.key.clone(), name: name.to_owned() }),
        }
    }
    Ok(payload)
}
