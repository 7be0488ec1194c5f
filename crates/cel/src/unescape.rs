//! What a string or bytes literal stands for.

/// The bytes of the literal, prefix and quotes taken off, escapes resolved. Text escapes of strings become UTF-8.
pub(crate) fn unescape(literal: &str, bytes: bool) -> Result<Vec<u8>, &'static str> {
    let literal = literal.replace("\r\n", "\n").replace('\r', "\n");
    let raw = literal.starts_with(['r', 'R']);
    let quoted = if raw { literal.get(1..).unwrap_or_default() } else { &literal };
    let quote = if quoted.len() >= 6 && (quoted.starts_with("'''") || quoted.starts_with("\"\"\"")) { 3 } else { 1 };
    let body = quoted.get(quote..quoted.len().saturating_sub(quote)).ok_or("unable to unescape string")?;
    if raw || !body.contains('\\') {
        return Ok(body.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        if c == '\\' {
            rest = escape(rest.get(1..).unwrap_or_default(), bytes, &mut out)?;
        } else {
            push(&mut out, c);
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
        }
    }
    Ok(out)
}

fn push(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Resolves the escape after a backslash and returns what follows it.
fn escape<'t>(text: &'t str, bytes: bool, out: &mut Vec<u8>) -> Result<&'t str, &'static str> {
    let bad = "unable to unescape string";
    let kind = text.chars().next().ok_or("unable to unescape string, found '\\' as last character")?;
    let plain = match kind {
        'a' => Some(7),
        'b' => Some(8),
        'f' => Some(12),
        'n' => Some(10),
        'r' => Some(13),
        't' => Some(9),
        'v' => Some(11),
        '\\' | '\'' | '"' | '`' | '?' => u8::try_from(kind).ok(),
        _ => None,
    };
    if let Some(byte) = plain {
        out.push(byte);
        return text.get(1..).ok_or(bad);
    }
    let (from, length, radix) = match kind {
        'x' | 'X' => (1, 2, 16),
        'u' if !bytes => (1, 4, 16),
        'U' if !bytes => (1, 8, 16),
        '0'..='3' => (0, 3, 8),
        _ => return Err(bad),
    };
    let octal = "unable to unescape octal sequence in string";
    let digits = text.get(from..from + length).ok_or(if radix == 8 { octal } else { bad })?;
    let code = u32::from_str_radix(digits, radix).map_err(|_| if radix == 8 { octal } else { bad })?;
    if bytes {
        out.push(u8::try_from(code).map_err(|_| bad)?);
    } else {
        push(out, char::from_u32(code).ok_or("invalid unicode code point")?);
    }
    text.get(from + length..).ok_or(bad)
}
