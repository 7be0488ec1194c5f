//! Questions about permissions, narrowed down step by step.

use api::validation;

use super::unfit;
use crate::authorizer::{Check, Decision};
use crate::error::EvalError;
use crate::library::Args;
use crate::opaque::{Asker, Opaque};
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvalError>;

fn subject<'x, 'a>(args: &'x Args<'_, 'a>) -> Result<(&'x Opaque<'a>, &'x str), EvalError> {
    match args.values {
        [Value::Opaque(opaque), Value::String(text)] => Ok((opaque, text)),
        _ => Err(unfit(args)),
    }
}

/// Everything that takes a string and makes the question more precise.
pub(crate) fn narrow<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (subject, text) = subject(args)?;
    let given = |what: &str| match text.trim().is_empty() {
        true => Err(EvalError::new(format!("{what} must not be empty"))),
        false => Ok(text.to_owned()),
    };
    let narrowed = match (subject, args.function) {
        (Opaque::Authorizer(asker), "path") => Opaque::PathCheck(asker.clone(), given("path")?),
        (Opaque::Authorizer(asker), "group") => Opaque::GroupCheck(asker.clone(), text.to_owned()),
        (Opaque::GroupCheck(asker, group), "resource") => {
            let check = Check { group: group.clone(), resource: given("resource")?, ..Check::default() };
            Opaque::ResourceCheck(asker.clone(), check)
        }
        (Opaque::ResourceCheck(asker, check), function) => {
            let mut check = check.clone();
            let part = match function {
                "subresource" => &mut check.subresource,
                "namespace" => &mut check.namespace,
                "name" => &mut check.name,
                "fieldSelector" => &mut check.field_selector,
                "labelSelector" => &mut check.label_selector,
                _ => return Err(unfit(args)),
            };
            text.clone_into(part);
            Opaque::ResourceCheck(asker.clone(), check)
        }
        _ => return Err(unfit(args)),
    };
    Ok(Value::opaque(narrowed))
}

pub(crate) fn service_account<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(opaque), Value::String(namespace), Value::String(name)] = args.values else {
        return Err(unfit(args));
    };
    let Opaque::Authorizer(asker) = &**opaque else { return Err(unfit(args)) };
    if !validation::is_subdomain(name).is_empty() {
        return Err(EvalError::new("Invalid service account name"));
    }
    if !validation::is_label(namespace).is_empty() {
        return Err(EvalError::new("Invalid service account namespace"));
    }
    let service_account = Some((namespace.to_string(), name.to_string()));
    Ok(Value::opaque(Opaque::Authorizer(Asker { authorizer: asker.authorizer, service_account })))
}

pub(crate) fn check<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (subject, verb) = subject(args)?;
    let (asker, mut check) = match subject {
        Opaque::PathCheck(asker, path) => (asker, Check { path: Some(path.clone()), ..Check::default() }),
        Opaque::ResourceCheck(asker, check) => (asker, check.clone()),
        _ => return Err(unfit(args)),
    };
    verb.clone_into(&mut check.verb);
    check.service_account.clone_from(&asker.service_account);
    Ok(Value::opaque(Opaque::Decision(asker.authorizer.authorize(&check))))
}

pub(crate) fn decision<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(opaque)] = args.values else { return Err(unfit(args)) };
    let Opaque::Decision(Decision { allowed, reason, error }) = &**opaque else { return Err(unfit(args)) };
    Ok(match args.function {
        "errored" => Value::Bool(error.is_some()),
        "error" => Value::string(error.as_deref().unwrap_or_default()),
        "allowed" => Value::Bool(*allowed),
        _ => Value::string(reason.as_str()),
    })
}
