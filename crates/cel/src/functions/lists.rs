//! Lists, sets and maps.

use std::cmp::Ordering;
use std::rc::Rc;

use super::{arithmetic, unfit};
use crate::error::{EvalError, no_such_overload};
use crate::library::Args;
use crate::value::{List, Map, Value, key_order};

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Longer ranges are refused: nothing but memory would limit them.
const MAX_RANGE: i64 = 1_000_000;

pub(crate) fn size<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let size = args.values.first().and_then(Value::size).and_then(|size| i64::try_from(size).ok());
    size.map(Value::Int).ok_or_else(|| unfit(args))
}

pub(crate) fn contains<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [wanted, Value::List(list)] => Ok(Value::Bool(list.contains(wanted))),
        [key, Value::Map(map)] => Ok(Value::Bool(map.find(key)?.is_some())),
        _ => Err(unfit(args)),
    }
}

fn list<'x, 'a>(args: &'x Args<'_, 'a>) -> Result<&'x List<'a>, EvalError> {
    match args.values {
        [Value::List(list), ..] => Ok(list),
        _ => Err(unfit(args)),
    }
}

pub(crate) fn is_sorted<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let mut before: Option<Value<'a>> = None;
    for value in list(args)?.iter() {
        if let Some(before) = &before
            && before.compare(&value)? == Ordering::Greater
        {
            return Ok(Value::Bool(false));
        }
        before = Some(value);
    }
    Ok(Value::Bool(true))
}

pub(crate) fn sum<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let list = list(args)?;
    let mut sum = match list.get(0) {
        None | Some(Value::Int(_)) => Value::Int(0),
        Some(Value::Uint(_)) => Value::Uint(0),
        Some(Value::Double(_)) => Value::Double(0.0),
        Some(Value::Duration(_)) => Value::Duration(0),
        Some(_) => return Err(unfit(args)),
    };
    for value in list.iter() {
        sum = arithmetic::add(&Args { function: "_+_", values: &[sum, value], regex: None })?;
    }
    Ok(sum)
}

/// `max` and `min`.
pub(crate) fn extreme<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let better = if args.function == "max" { Ordering::Less } else { Ordering::Greater };
    let mut best: Option<Value<'a>> = None;
    for value in list(args)?.iter() {
        let replace = match &best {
            Some(best) => best.compare(&value)? == better,
            None => true,
        };
        if replace {
            best = Some(value);
        }
    }
    best.ok_or_else(|| EvalError::new(format!("{} called on empty list", args.function)))
}

pub(crate) fn slice<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args.values else { return Err(unfit(args)) };
    let refuse = |why: String| Err(EvalError::new(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refuse("negative indexes not supported".to_owned());
    };
    if from > to {
        return refuse("start index must be less than or equal to end index".to_owned());
    }
    if to > list.len() {
        return refuse(format!("list is length {}", list.len()));
    }
    Ok(Value::list(list.iter().skip(from).take(to - from).collect()))
}

pub(crate) fn flatten<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let depth = match args.values {
        [Value::List(_)] => 1,
        [Value::List(_), Value::Int(depth)] => *depth,
        _ => return Err(unfit(args)),
    };
    if depth < 0 {
        return Err(EvalError::new("level must be non-negative"));
    }
    let mut flat = Vec::new();
    flatten_into(list(args)?, depth, &mut flat);
    Ok(Value::list(flat))
}

fn flatten_into<'a>(list: &List<'a>, depth: i64, flat: &mut Vec<Value<'a>>) {
    for value in list.iter() {
        match &value {
            Value::List(inner) if depth > 0 => flatten_into(inner, depth - 1, flat),
            _ => flat.push(value),
        }
    }
}

/// By its own elements, or by keys that were computed for them.
pub(crate) fn sort<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (list, keys) = match args.values {
        [Value::List(list)] => (list, list),
        [Value::List(list), Value::List(keys)] => (list, keys),
        _ => return Err(unfit(args)),
    };
    if list.len() != keys.len() {
        return Err(EvalError::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} \
             elements respectively",
            list.len(),
            keys.len()
        )));
    }
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.iter().zip(list.iter()).collect();
    if let Some((first, _)) = pairs.first() {
        first.compare(first).map_err(|_| EvalError::new("list elements must be comparable"))?;
        if pairs.iter().any(|(key, _)| key.type_name() != first.type_name()) {
            return Err(EvalError::new("list elements must have the same type"));
        }
    }
    pairs.sort_by(|(a, _), (b, _)| a.compare(b).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|(_, value)| value).collect()))
}

pub(crate) fn range<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Int(end)] = args.values else { return Err(unfit(args)) };
    if *end > MAX_RANGE {
        return Err(EvalError::CostLimit);
    }
    Ok(Value::list((0..*end).map(Value::Int).collect()))
}

pub(crate) fn reverse<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let mut values: Vec<Value<'a>> = list(args)?.iter().collect();
    values.reverse();
    Ok(Value::list(values))
}

pub(crate) fn distinct<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let mut seen: Vec<Value<'a>> = Vec::new();
    for value in list(args)?.iter() {
        if !seen.iter().any(|known| known.equals(&value)) {
            seen.push(value);
        }
    }
    Ok(Value::list(seen))
}

pub(crate) fn sets<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::List(a), Value::List(b)] = args.values else { return Err(unfit(args)) };
    let within = |small: &List<'a>, big: &List<'a>| small.iter().all(|value| big.contains(&value));
    Ok(Value::Bool(match args.function {
        "sets.contains" => within(b, a),
        "sets.equivalent" => within(b, a) && within(a, b),
        _ => a.iter().any(|value| b.contains(&value)),
    }))
}

/// A map from its entries; of two values under one key the later stays.
pub(crate) fn map_of<'a>(entries: Vec<(Value<'a>, Value<'a>)>) -> Outcome<'a> {
    let mut map = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        insert(&mut map, key, value, true)?;
    }
    Ok(Value::Map(Map::Values(Rc::new(map))))
}

fn insert<'a>(
    map: &mut Vec<(Value<'a>, Value<'a>)>,
    key: Value<'a>,
    value: Value<'a>,
    replace: bool,
) -> Result<(), EvalError> {
    if !matches!(key, Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_)) {
        return Err(EvalError::new(format!("unsupported key type: {}", key.type_name())));
    }
    match map.binary_search_by(|(known, _)| key_order(known, &key)) {
        Ok(index) if replace => {
            if let Some(entry) = map.get_mut(index) {
                entry.1 = value;
            }
        }
        Ok(_) => {
            let shown = super::convert::show(&key).and_then(Result::ok).unwrap_or_default();
            return Err(EvalError::new(format!("insert failed: key {shown} already exists")));
        }
        Err(index) => map.insert(index, (key, value)),
    }
    Ok(())
}

pub(crate) fn map_insert<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [target, rest @ ..] = args.values else { return Err(unfit(args)) };
    match (target, rest) {
        (Value::Map(_), [_, _] | [Value::Map(_)]) => insert_into(target.clone(), rest),
        _ => Err(unfit(args)),
    }
}

/// Inserts a key and a value, or all of another map, into a map; without a copy if nobody else holds it.
pub(crate) fn insert_into<'a>(target: Value<'a>, more: &[Value<'a>]) -> Outcome<'a> {
    let Value::Map(target) = target else { return Err(no_such_overload()) };
    let mut entries = match target {
        Map::Values(entries) => Rc::try_unwrap(entries).unwrap_or_else(|shared| (*shared).clone()),
        Map::Json(..) | Map::Consts(_) | Map::Struct(..) => entries_of(&target)?,
    };
    match more {
        [key, value] => insert(&mut entries, key.clone(), value.clone(), false)?,
        [Value::Map(more)] => {
            for (key, value) in entries_of(more)? {
                insert(&mut entries, key, value, false)?;
            }
        }
        _ => return Err(no_such_overload()),
    }
    Ok(Value::Map(Map::Values(Rc::new(entries))))
}

fn entries_of<'a>(map: &Map<'a>) -> Result<Vec<(Value<'a>, Value<'a>)>, EvalError> {
    let mut entries = Vec::with_capacity(map.len());
    for key in map.keys() {
        let value = map.find(&key)?.ok_or_else(no_such_overload)?;
        entries.push((key, value));
    }
    entries.sort_by(|(a, _), (b, _)| key_order(a, b));
    Ok(entries)
}
