//! Parts of timestamps and durations.

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::value::Value;

pub(crate) fn part<'a>(args: &Args<'_, 'a>) -> Result<Value<'a>, EvalError> {
    let part = match args.values {
        [Value::Timestamp(time)] => time.part(args.function, None)?,
        [Value::Timestamp(time), Value::String(zone)] => time.part(args.function, Some(zone))?,
        [Value::Duration(nanos)] => {
            let unit = match args.function {
                "getHours" => 3_600_000_000_000,
                "getMinutes" => 60_000_000_000,
                "getSeconds" => 1_000_000_000,
                "getMilliseconds" => 1_000_000,
                _ => return Err(unfit(args)),
            };
            nanos / unit
        }
        _ => return Err(unfit(args)),
    };
    Ok(Value::Int(part))
}
