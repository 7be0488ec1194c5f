//! Storage objects that are deleted while they are used go when they no longer are.

use anyhow::{Result, ensure};
use e2e::Cluster;

const OBJECTS: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: used}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, volumeAttributesClassName: gold}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: unused}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  nodeName: elsewhere
  containers: [{name: a, image: "ferry.local/hello:0.1.0"}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: used}}]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: bound}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /tmp/bound}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: free}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /tmp/free}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: gold}
driverName: example.com
parameters: {iops: "1000"}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: silver}
driverName: example.com
parameters: {iops: "10"}
"#;

#[test]
fn what_is_used_outlives_its_deletion() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let cluster = Cluster::start(dir.path())?;
    let applied = cluster.apply(OBJECTS)?;
    ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let path = "{.metadata.finalizers}";
    ensure!(cluster.jsonpath("pvc used", path)? == r#"["kubernetes.io/pvc-protection"]"#);
    cluster.kubectl(&["patch", "pv", "bound", "--subresource=status", "-p", r#"{"status":{"phase":"Bound"}}"#])?;
    // Each pair is looked at by one controller, in this order: what is used stays although its turn came first.
    for (kind, used, unused) in
        [("pvc", "used", "unused"), ("pv", "bound", "free"), ("volumeattributesclass", "gold", "silver")]
    {
        cluster.kubectl(&["delete", kind, used, "--wait=false"])?;
        cluster.kubectl(&["delete", kind, unused, "--timeout=20s"])?;
        let since = cluster.jsonpath(&format!("{kind} {used}"), "{.metadata.deletionTimestamp}")?;
        ensure!(!since.is_empty(), "{kind} is not even marked");
    }
    let gone = |what: &str| cluster.kubectl(&["wait", "--for=delete", what, "--timeout=20s"]);
    cluster.kubectl(&["patch", "pv", "bound", "--subresource=status", "-p", r#"{"status":{"phase":"Released"}}"#])?;
    gone("pv/bound")?;
    cluster.kubectl(&["delete", "pod", "user", "--force", "--grace-period=0"])?;
    gone("pvc/used")?;
    gone("volumeattributesclass/gold")?;
    cluster.stop()
}
