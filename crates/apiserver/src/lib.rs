//! The Kubernetes API over the store: one generic path for every resource.

mod admission;
mod aggregator;
mod audit;
mod auth;
mod bootstrap;
mod convert;
mod cors;
mod custom;
mod debug;
mod deprecation;
mod discovery;
mod field_manager;
mod file_watch;
mod flowcontrol;
mod handlers;
mod health;
mod heavy;
mod http;
mod identity;
mod listener;
mod master_leases;
mod metrics;
mod openapi;
mod outbound;
mod pipeline;
mod registry;
mod request_info;
mod routes;
mod runtime_config;
mod server;
mod service_ranges;
mod statusz;
mod storage;
mod strategy;
mod streaming;
mod table;

pub use admission::{AdmissionError, AdmissionSettings};
pub use audit::{Audit, AuditError, AuditLog};
pub use auth::keys::{KeyError, ServiceAccountKeys};
pub use auth::request_header::RequestHeaderSettings;
pub use auth::settings::{
    AuthError, AuthSettings, JwksFile, OidcSettings, TokenSettings, WebhookSettings, parse_duration,
};
pub use cors::{Cors, OriginError};
pub use debug::SetVerbosity;
pub use flowcontrol::FlowSettings;
pub use http::{Body, BoxError};
pub use listener::{ServeError, ShownByName, TlsSettings, tls_config};
pub use request_info::{RequestInfo, decode_path};
pub use runtime_config::{RuntimeConfig, RuntimeConfigError};
pub use server::{ApiServer, Config, KubeletClient, StartError};
pub use service_ranges::{ServiceRanges, ServiceRangesError};
pub use storage::{EncryptionError, EncryptionSettings};
pub use strategy::allow_privileged;
