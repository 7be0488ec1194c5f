//! The generated messages and services.

#![allow(clippy::all, unreachable_pub, missing_docs)]

pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");

    /// A password in a log is a leak.
    impl std::fmt::Debug for AuthenticateRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
        }
    }
}

/// The Watch service with events that are encoded already.
pub(crate) mod served {
    include!(concat!(env!("OUT_DIR"), "/served/etcdserverpb.rs"));
}
