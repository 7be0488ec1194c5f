//! The kubelet's own certificates: asked for through the API, kept in files, renewed long before they end.

mod bootstrap;
mod leaf;
mod request;
mod rotation;
mod store;
#[cfg(test)]
mod testing;

pub use self::bootstrap::{BootstrapError, bootstrap};
pub use self::leaf::Leaf;
pub use self::request::{RequestError, Template};
pub use self::rotation::{Rotation, RotationError, Show};
pub use self::store::{CertificateStore, StoreError};
