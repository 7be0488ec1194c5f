//! The rules of what is done to a container: probes, and what happens after its start and before its end.

use api::field::FieldError;

use super::super::check::At;

pub(super) const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

pub(super) fn lifecycle(container: &At<'_>, spec: &At<'_>) {
    for hook in ["postStart", "preStop"] {
        let hook = container.at(&["lifecycle", hook]);
        if hook.exists() {
            handler(&hook, spec);
        }
    }
    for name in PROBES {
        let probe = container.field(name);
        if !probe.exists() {
            continue;
        }
        handler(&probe, spec);
        probe.none_negative(&[
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ]);
        let grace = probe.field("terminationGracePeriodSeconds");
        grace.positive();
        if name == "readinessProbe" {
            if grace.exists() {
                grace.invalid("must not be set for readinessProbes");
            }
        } else {
            let successes = probe.field("successThreshold");
            if successes.number().is_some_and(|count| count != 1) {
                successes.invalid("must be 1");
            }
        }
    }
}

/// Exactly one thing to do.
fn handler(at: &At<'_>, spec: &At<'_>) {
    let mut given = HANDLERS.iter().map(|name| (*name, at.field(name))).filter(|(_, handler)| handler.exists());
    let Some((kind, handler)) = given.next() else {
        at.required("must specify a handler type");
        return;
    };
    match kind {
        "exec" => drop(handler.field("command").needed()),
        "httpGet" => {
            handler.field("path").needed();
            handler.field("port").port();
            handler.field("scheme").one_of(&["HTTP", "HTTPS"]);
            for header in handler.each("httpHeaders") {
                // Upstream tells of the list here, not of the header.
                header.field("name").called(handler.path().child("httpHeaders")).named(is_header);
            }
        }
        "tcpSocket" | "grpc" => handler.field("port").port(),
        "sleep" => {
            let seconds = handler.field("seconds").number().unwrap_or(0);
            if let Some(grace) = spec.field("terminationGracePeriodSeconds").number()
                && !(0..=grace).contains(&seconds)
            {
                let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                handler.complain(FieldError::invalid(handler.path(), seconds, detail));
            }
        }
        _ => (),
    }
    given.for_each(|(_, extra)| extra.forbidden("may not specify more than 1 handler type"));
}

fn is_header(name: &str) -> Vec<String> {
    const MESSAGE: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
    let valid = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if valid { Vec::new() } else { vec![MESSAGE.to_owned()] }
}
