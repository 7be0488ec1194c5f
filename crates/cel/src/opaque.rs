//! Values of the libraries, which have functions but no fields.

use std::net::IpAddr;

use api::quantity::Quantity;

use crate::authorizer::{Authorizer, Check, Decision};
use crate::functions::net::Cidr;
use crate::functions::semver::Semver;
use crate::functions::url::Url;

pub enum Opaque<'a> {
    Quantity(Quantity),
    Ip(IpAddr),
    Cidr(Cidr),
    Url(Url),
    Semver(Semver),
    Format(&'static crate::functions::named::Format),
    Authorizer(Asker<'a>),
    PathCheck(Asker<'a>, String),
    GroupCheck(Asker<'a>, String),
    ResourceCheck(Asker<'a>, Check),
    Decision(Decision),
}

/// Who is asked, and for whom: the user of the request unless a service account is named.
#[derive(Clone)]
pub struct Asker<'a> {
    pub authorizer: &'a dyn Authorizer,
    pub service_account: Option<(String, String)>,
}

impl Opaque<'_> {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Self::PathCheck(..) => "kubernetes.authorization.PathCheck",
            Self::GroupCheck(..) => "kubernetes.authorization.GroupCheck",
            Self::ResourceCheck(..) => "kubernetes.authorization.ResourceCheck",
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    pub(crate) fn equals(&self, other: &Opaque<'_>) -> bool {
        match (self, other) {
            (Self::Quantity(a), Opaque::Quantity(b)) => a == b,
            (Self::Ip(a), Opaque::Ip(b)) => a == b,
            (Self::Cidr(a), Opaque::Cidr(b)) => a == b,
            (Self::Url(a), Opaque::Url(b)) => a == b,
            (Self::Semver(a), Opaque::Semver(b)) => a == b,
            (Self::Format(a), Opaque::Format(b)) => std::ptr::eq(*a, *b),
            _ => false,
        }
    }
}
