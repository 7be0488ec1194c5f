//! The Kubernetes API over the store: one generic path for every resource.

mod admission;
mod audit;
mod auth;
mod bootstrap;
mod convert;
mod cors;
mod custom;
mod discovery;
mod field_manager;
mod handlers;
mod health;
mod heavy;
mod http;
mod listener;
mod master_leases;
mod metrics;
mod openapi;
mod outbound;
mod pipeline;
mod registry;
mod request_info;
mod server;
mod storage;
mod strategy;
mod streaming;
mod table;
mod webhook;

pub use admission::{AdmissionError, AdmissionSettings};
pub use audit::{Audit, AuditError, AuditLog};
pub use auth::request_header::RequestHeaderSettings;
pub use auth::settings::{AuthError, AuthSettings, OidcSettings, WebhookSettings, parse_duration};
pub use auth::tokens::{ServiceAccountKey, TokenError};
pub use cors::{Cors, PatternError};
pub use http::{Body, BoxError};
pub use listener::{ServeError, tls_config};
pub use server::{ApiServer, Config, KubeletClient, StartError};
