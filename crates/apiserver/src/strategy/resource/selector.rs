//! Expressions over devices: whether they can be read, and what they can cost.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use api::field::FieldError;
use cel::{Env, Sizes, Type, Types, opaque_type};

use super::{LONGEST_DRIVER, LONGEST_ID, LONGEST_VALUE, MOST_ATTRIBUTES};
use crate::strategy::check::At;

const LONGEST_EXPRESSION: usize = 10 * 1024;
const MOST_COST: u64 = 1_000_000;
const DEVICE: &str = "kubernetes.DRADevice";

pub(super) fn expression(at: &At<'_>) {
    if at.text().len() > LONGEST_EXPRESSION {
        return at.complain(FieldError::too_long(at.path(), LONGEST_EXPRESSION));
    }
    let env = environment();
    match env.compile(at.text()) {
        Err(error) => at.invalid_shown(at.text(), &format!("compilation failed: {error}")),
        Ok(program) if !matches!(program.output(), Type::Bool | Type::Dyn) => {
            let found = program.output();
            at.invalid_shown(at.text(), &format!("must evaluate to bool or the unknown type, not {found}"));
        }
        Ok(_) => {
            if env.estimate(at.text(), &Device).is_ok_and(|cost| cost.max > MOST_COST) {
                at.forbidden("too complex, exceeds cost limit");
            }
        }
    }
}

fn environment() -> &'static Env {
    static ENV: OnceLock<Env> = OnceLock::new();
    ENV.get_or_init(|| Env::default().bindings().variable("device", Type::object(DEVICE)).types(Arc::new(Device)))
}

/// What an expression can see of a device.
struct Device;

impl Types for Device {
    fn has(&self, name: &str) -> bool {
        name == DEVICE
    }

    fn field(&self, name: &str, field: &str) -> Option<Type> {
        let by_domain = |value: Type| Type::map(Type::String, Type::map(Type::String, value));
        match field {
            _ if name != DEVICE => None,
            "driver" => Some(Type::String),
            "allowMultipleAllocations" => Some(Type::Bool),
            "attributes" => Some(by_domain(Type::Dyn)),
            "capacity" => Some(by_domain(opaque_type("kubernetes.Quantity")?)),
            _ => None,
        }
    }
}

impl Sizes for Device {
    fn most(&self, path: &[Rc<str>]) -> Option<u64> {
        let path: Vec<&str> = path.iter().map(AsRef::as_ref).collect();
        let most = match path.as_slice() {
            ["device", "driver"] => LONGEST_DRIVER,
            ["device", "allowMultipleAllocations"] => 1,
            ["device", "attributes" | "capacity"] | ["device", "attributes" | "capacity", "@values"] => MOST_ATTRIBUTES,
            ["device", "attributes" | "capacity", "@keys"] => LONGEST_DRIVER,
            ["device", "attributes" | "capacity", "@values", "@keys"] => LONGEST_ID,
            // An attribute is as long as any, whatever it is called.
            ["device", "attributes", "@values", _] => LONGEST_VALUE,
            _ => return None,
        };
        u64::try_from(most).ok()
    }
}
