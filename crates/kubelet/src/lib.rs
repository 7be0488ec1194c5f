//! Ferry's kubelet.
