//! Says what is wrong with a text that is not JSON, in the words of Go's scanner, which clients show.

/// Where the scanner stood when it met a byte it could not take.
enum Wrong {
    Byte(u8, String),
    End,
}

/// Why Go could not read the text; nothing if it could.
pub fn complaint(text: &[u8]) -> Option<String> {
    let mut scanner = Scanner { rest: text };
    match scanner.document().err()? {
        Wrong::End => Some("unexpected end of JSON input".to_owned()),
        Wrong::Byte(byte, place) => Some(format!("invalid character {} {place}", quoted(byte))),
    }
}

fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        0x07 => r"'\a'".to_owned(),
        0x08 => r"'\b'".to_owned(),
        0x0b => r"'\v'".to_owned(),
        0x0c => r"'\f'".to_owned(),
        0x00..=0x1f | 0x7f => format!(r"'\x{byte:02x}'"),
        0x80..=0x9f | 0xa0 | 0xad => format!(r"'\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    fn document(&mut self) -> Result<(), Wrong> {
        // What is open around the value that is read: an object, or else an array. A stack, so that depth costs no stack.
        let mut around: Vec<bool> = Vec::new();
        loop {
            let mut is_open = self.value(&mut around)?;
            while !is_open {
                let Some(&in_object) = around.last() else {
                    return match self.after_space() {
                        None => Ok(()),
                        Some(byte) => Err(Wrong::Byte(byte, "after top-level value".to_owned())),
                    };
                };
                match (self.after_space().ok_or(Wrong::End)?, in_object) {
                    (b',', true) => {
                        self.key()?;
                        is_open = true;
                    }
                    (b',', false) => is_open = true,
                    (b'}', true) | (b']', false) => drop(around.pop()),
                    (byte, true) => return Err(Wrong::Byte(byte, "after object key:value pair".to_owned())),
                    (byte, false) => return Err(Wrong::Byte(byte, "after array element".to_owned())),
                }
            }
        }
    }

    /// Reads a value, or up to the first one in it; tells whether one is to follow.
    fn value(&mut self, around: &mut Vec<bool>) -> Result<bool, Wrong> {
        match self.after_space().ok_or(Wrong::End)? {
            b'{' => {
                if self.takes(b'}') {
                    return Ok(false);
                }
                around.push(true);
                self.key()?;
                return Ok(true);
            }
            b'[' => {
                if self.takes(b']') {
                    return Ok(false);
                }
                around.push(false);
                return Ok(true);
            }
            b'"' => self.string()?,
            b't' => self.literal("true")?,
            b'f' => self.literal("false")?,
            b'n' => self.literal("null")?,
            byte @ (b'-' | b'0'..=b'9') => self.number(byte)?,
            byte => return Err(Wrong::Byte(byte, "looking for beginning of value".to_owned())),
        }
        Ok(false)
    }

    fn key(&mut self) -> Result<(), Wrong> {
        match self.after_space().ok_or(Wrong::End)? {
            b'"' => self.string()?,
            byte => return Err(Wrong::Byte(byte, "looking for beginning of object key string".to_owned())),
        }
        match self.after_space().ok_or(Wrong::End)? {
            b':' => Ok(()),
            byte => Err(Wrong::Byte(byte, "after object key".to_owned())),
        }
    }

    fn string(&mut self) -> Result<(), Wrong> {
        loop {
            match self.next().ok_or(Wrong::End)? {
                b'"' => return Ok(()),
                b'\\' => match self.next().ok_or(Wrong::End)? {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => (),
                    b'u' => {
                        for _ in 0..4 {
                            let digit = self.next().ok_or(Wrong::End)?;
                            if !digit.is_ascii_hexdigit() {
                                return Err(Wrong::Byte(digit, r"in \u hexadecimal character escape".to_owned()));
                            }
                        }
                    }
                    byte => return Err(Wrong::Byte(byte, "in string escape code".to_owned())),
                },
                byte if byte < 0x20 => return Err(Wrong::Byte(byte, "in string literal".to_owned())),
                _ => (),
            }
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), Wrong> {
        for wanted in word.bytes().skip(1) {
            let byte = self.next().ok_or(Wrong::End)?;
            if byte != wanted {
                return Err(Wrong::Byte(byte, format!("in literal {word} (expecting '{}')", char::from(wanted))));
            }
        }
        Ok(())
    }

    fn number(&mut self, first: u8) -> Result<(), Wrong> {
        let first = if first == b'-' { self.digit("in numeric literal")? } else { first };
        if first != b'0' {
            self.digits();
        }
        if self.takes_now(b".") {
            self.digit("after decimal point in numeric literal")?;
            self.digits();
        }
        if self.takes_now(b"eE") {
            self.takes_now(b"+-");
            self.digit("in exponent of numeric literal")?;
            self.digits();
        }
        Ok(())
    }

    fn digit(&mut self, place: &str) -> Result<u8, Wrong> {
        match self.next().ok_or(Wrong::End)? {
            byte if byte.is_ascii_digit() => Ok(byte),
            byte => Err(Wrong::Byte(byte, place.to_owned())),
        }
    }

    fn digits(&mut self) {
        while self.takes_now(b"0123456789") {}
    }

    fn takes_now(&mut self, any: &[u8]) -> bool {
        let found = self.rest.first().is_some_and(|byte| any.contains(byte));
        if found {
            self.next();
        }
        found
    }

    fn takes(&mut self, wanted: u8) -> bool {
        self.rest = self.rest.trim_ascii_start();
        self.takes_now(&[wanted])
    }

    fn after_space(&mut self) -> Option<u8> {
        while self.takes_now(b" \t\r\n") {}
        self.next()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_as_go_tells_it() {
        check("{\"a\": [1, true, null, -0.5e+3, {}, []]} ", "");
        check("", "unexpected end of JSON input");
        check("{\"a\":", "unexpected end of JSON input");
        check("x", "invalid character 'x' looking for beginning of value");
        check("[1,]", "invalid character ']' looking for beginning of value");
        check("{,}", "invalid character ',' looking for beginning of object key string");
        check("{\"a\":1,}", "invalid character '}' looking for beginning of object key string");
        check("{\"a\" 1}", "invalid character '1' after object key");
        check("{\"a\":1 2}", "invalid character '2' after object key:value pair");
        check("[1 2]", "invalid character '2' after array element");
        check("{} {}", "invalid character '{' after top-level value");
        check("01", "invalid character '1' after top-level value");
        check("1.x", "invalid character 'x' after decimal point in numeric literal");
        check("trie", "invalid character 'i' in literal true (expecting 'u')");
        check("\"a\nb\"", "invalid character '\\n' in string literal");
        check("\"\\x\"", "invalid character 'x' in string escape code");
        check("'a'", "invalid character '\\'' looking for beginning of value");
    }

    proptest::proptest! {
        /// What can be read is not complained of, and whatever else it is, it is looked at to its end.
        #[test]
        fn what_is_json_has_nothing_wrong_with_it(text in r#"[\[\]{}:, "a\\ue0-9.+-]{0,40}"#) {
            if serde_json::from_str::<serde_json::Value>(&text).is_ok() {
                proptest::prop_assert_eq!(complaint(text.as_bytes()), None);
            }
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60)) {
            complaint(&bytes);
        }
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(complaint(text.as_bytes()).unwrap_or_default(), want, "{text}");
    }
}
