//! What Kubernetes objects are, without I/O: kinds, schemas, metadata, selectors, quantities, patches, codecs.

pub mod addresses;
pub mod apply;
pub mod cron;
pub mod decode;
pub mod field;
pub mod json;
pub mod jsonpath;
pub mod object;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod resources;
pub mod schema;
pub mod selector;
pub mod status;
pub mod structural;
pub mod user;
pub mod validation;

pub use object::{Object, ObjectExt};
pub use status::{ApiError, GroupResource};
pub use user::UserInfo;
