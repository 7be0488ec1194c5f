//! The kubelet's own API on port 10250: what the API server proxies logs, exec, attach and port-forward to.

pub(crate) mod log_format;
