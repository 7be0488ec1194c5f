//! What Kubernetes objects are, without I/O: kinds, schemas, metadata, selectors, quantities, patches, codecs.

pub mod user;

pub use user::UserInfo;
