//! What Kubernetes objects are, without I/O: kinds, schemas, metadata, selectors, quantities, patches, codecs.

pub mod decode;
pub mod field;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod user;

pub use user::UserInfo;
