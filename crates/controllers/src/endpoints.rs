//! Keeps the Endpoints object of a Service: the older form of EndpointSlices, one object for all addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use client::{Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints as Object, ObjectReference, Pod, Service,
};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};

use crate::controller::{Context, Controller};
use crate::service::{self, HEADLESS_LABEL};
use crate::{meta, pod, pod_control};

const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MAX_ADDRESSES: usize = 1000;

pub(crate) struct Endpoints {
    client: kube::Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Informer<Object>,
}

impl Controller for Endpoints {
    const ACCOUNT: &'static str = "endpoint-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let (services, pods) = (context.informers.of::<Service>(), context.informers.of::<Pod>());
        let endpoints = context.informers.of::<Object>();
        services.subscribe({
            let queue = queue.clone();
            move |change| queue.add(Key::of(&**change.object()))
        });
        service::wake_on_pods(&pods, &services, &queue);
        endpoints.subscribe(move |change| queue.add(Key::of(&**change.object())));
        Self { client: context.client.clone(), services, pods, endpoints }
    }
}

#[async_trait]
impl Reconciler for Endpoints {
    const NAME: &'static str = "endpoints";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let api = Api::<Object>::namespaced(self.client.clone(), &key.namespace);
        let known = self.endpoints.get(key);
        let Some(service) = self.services.get(key) else {
            // Only ours go with the Service; users may keep Endpoints without one.
            if known.is_some_and(|known| meta::labels(&*known).get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1)) {
                match api.delete(&key.name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => (),
                    other => drop(other?),
                }
            }
            return Ok(Next::OnChange);
        };
        let Some(selector) = service::selector(&service) else { return Ok(Next::OnChange) };
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|pod| selector.matches(meta::labels(&**pod)));
        let wanted = plan(&service, &pods, known.as_deref());
        match known {
            Some(known) if *known == wanted => (),
            Some(_) => drop(api.replace(&key.name, &PostParams::default(), &wanted).await?),
            None => match api.create(&PostParams::default(), &wanted).await {
                Err(error) if pod_control::is_namespace_terminating(&error) => (),
                // The cache is behind; the watch brings what is there.
                Err(kube::Error::Api(status)) if status.code == 409 => (),
                other => drop(other?),
            },
        }
        Ok(Next::OnChange)
    }
}

fn plan(service: &Service, pods: &[Arc<Pod>], known: Option<&Object>) -> Object {
    let mut groups: BTreeMap<String, EndpointSubset> = BTreeMap::new();
    let publish = service::publishes_not_ready(service);
    let usable = |pod: &&Arc<Pod>| service::can_be_endpoint(pod) && (publish || !meta::is_deleting(&***pod));
    let usable = pods.iter().filter(usable);
    let mut usable: Vec<_> = usable.filter_map(|pod| Some((own_address(service, pod)?, pod))).collect();
    usable.sort_by_key(|(address, _)| *address);
    let over_capacity = usable.len() > MAX_ADDRESSES;
    for (own, pod) in usable.into_iter().take(MAX_ADDRESSES) {
        let ports = endpoint_ports(service, pod);
        if ports.is_empty() && service::ports(service).next().is_some() {
            continue;
        }
        let key = ports.iter().map(|port| format!("{:?}/{}/{:?} ", port.name, port.port, port.protocol)).collect();
        let subset = groups.entry(key).or_insert_with(|| EndpointSubset {
            ports: Some(ports).filter(|ports| !ports.is_empty()),
            ..Default::default()
        });
        let list = if publish || pod::is_ready(pod) { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        list.get_or_insert_default().push(address(service, pod, own));
    }
    let base = known.map(|known| known.metadata.clone()).unwrap_or_else(|| ObjectMeta {
        name: service.metadata.name.clone(),
        namespace: service.metadata.namespace.clone(),
        ..Default::default()
    });
    let mut labels = meta::labels(service).clone();
    labels.remove(HEADLESS_LABEL);
    labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
    if service::is_headless(service) {
        labels.insert(HEADLESS_LABEL.into(), String::new());
    }
    let mut annotations = base.annotations.clone().unwrap_or_default();
    match over_capacity {
        true => drop(annotations.insert(OVER_CAPACITY.into(), "truncated".into())),
        false => drop(annotations.remove(OVER_CAPACITY)),
    }
    let subsets: Vec<_> = groups.into_values().collect();
    let empty = subsets.is_empty() && known.is_some_and(|known| known.subsets.as_ref().is_none_or(Vec::is_empty));
    Object {
        metadata: ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations).filter(|all| !all.is_empty()),
            ..base
        },
        // Absent and empty mean the same; keeping the form avoids a write that changes nothing.
        subsets: if empty { known.and_then(|known| known.subsets.clone()) } else { Some(subsets) },
    }
}

fn endpoint_ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service::ports(service).filter_map(|port| {
        Some(EndpointPort {
            name: port.name.clone().filter(|name| !name.is_empty()),
            port: service::find_port(pod, port)?,
            protocol: Some(service::protocol(port).to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    });
    ports.collect()
}

/// The pod's address of the service's first family.
fn own_address<'a>(service: &Service, pod: &'a Pod) -> Option<&'a str> {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref());
    let Some(family) = families.and_then(|families| families.first()) else { return service::addresses(pod).next() };
    service::addresses(pod).find(|address| service::is_of(address, family))
}

fn address(service: &Service, pod: &Pod, own: &str) -> EndpointAddress {
    EndpointAddress {
        ip: own.to_owned(),
        hostname: service::hostname(pod, service).map(str::to_owned),
        node_name: Some(pod::node_name(pod)).filter(|node| !node.is_empty()).map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..Default::default()
        }),
    }
}
