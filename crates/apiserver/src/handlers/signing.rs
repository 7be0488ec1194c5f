//! A request for a certificate is in the name of who sends it.

use api::Object;

use crate::pipeline::Context;
use crate::registry::Served;
use crate::strategy;

pub(super) fn set_requester(served: &Served, context: &Context, object: &mut Object) {
    if served.info.group == "certificates.k8s.io" && served.info.plural == "certificatesigningrequests" {
        strategy::set_requester(object, &context.user);
    }
}
