//! Tokens into a tree, by precedence climbing.
//!
//! Invariants: neither the nesting of the text nor the depth of the tree passes its limit, so that whoever walks the tree
//! may recurse. The first error of syntax ends the parse; the messages are worded as upstream's users know them.

use std::sync::Arc;

use crate::ast::{Element, Entry, Expr, Field, Id, Kind, Literal};
use crate::source::Issue;
use crate::token::{Lexeme, Token, escaped, lex};
use crate::unescape::unescape;

/// Upstream's limits: code points of an expression, nesting of its text.
const MAX_SIZE: usize = 100_000;
const MAX_NESTING: u16 = 250;
/// A macro adds levels of its own, so the tree may be somewhat deeper than the text is nested.
const MAX_DEPTH: u16 = 320;
/// Macros that repeat their target could double the tree each time.
const MAX_NODES: Id = 1_000_000;

/// Words that name nothing.
pub(crate) const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
const OPERAND: &str = "'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                       BYTES, IDENTIFIER}";

/// The parse cannot go on; the reason is among the issues.
pub(crate) struct Stop;

pub(crate) struct Parser<'s> {
    tokens: Vec<Lexeme<'s>>,
    next: usize,
    nesting: u16,
    ids: Id,
    issues: Vec<Issue>,
    /// `cel.bind` is a macro.
    pub(crate) binds: bool,
}

/// The tree of an expression, and how many ids it uses.
pub(crate) fn parse(source: &str, binds: bool) -> Result<(Expr, Id), Vec<Issue>> {
    let size = source.chars().count();
    if size > MAX_SIZE {
        let message = format!("expression code point size exceeds limit: size: {size}, limit {MAX_SIZE}");
        return Err(vec![Issue { at: None, message }]);
    }
    let mut issues = Vec::new();
    let tokens = lex(source, &mut issues);
    let mut parser = Parser { tokens, next: 0, nesting: 0, ids: 0, issues, binds };
    match parser.whole() {
        Ok(expr) if parser.issues.is_empty() => Ok((expr, parser.ids)),
        _ => Err(parser.issues),
    }
}

impl<'s> Parser<'s> {
    fn whole(&mut self) -> Result<Expr, Stop> {
        let expr = self.expr()?;
        if self.peek().token == Token::Eof {
            return Ok(expr);
        }
        let verb = if self.peek_at(1).token == Token::Eof { "extraneous" } else { "mismatched" };
        Err(self.unexpected(verb, "<EOF>"))
    }

    /// `or ('?' or ':' expr)?`
    fn expr(&mut self) -> Result<Expr, Stop> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.too_deep());
        }
        let mut expr = self.disjunction()?;
        if self.peek().token == Token::Sign("?") {
            expr = self.choice(expr)?;
        }
        self.nesting -= 1;
        Ok(expr)
    }

    // What is rare is kept out of the functions that nest, so that their frames stay small.

    #[inline(never)]
    fn choice(&mut self, condition: Expr) -> Result<Expr, Stop> {
        let at = self.take().at;
        let yes = self.disjunction()?;
        self.expect_colon()?;
        let no = self.expr()?;
        self.call(at, "_?_:_", vec![condition, yes, no])
    }

    /// `a && b || c && d`
    fn disjunction(&mut self) -> Result<Expr, Stop> {
        let first = self.relation(0)?;
        if matches!(self.peek().token, Token::Sign("&&" | "||")) { self.logic(first) } else { Ok(first) }
    }

    /// Each operator's chain is made into a balanced tree.
    #[inline(never)]
    fn logic(&mut self, first: Expr) -> Result<Expr, Stop> {
        let (mut ors, mut or_ops) = (Vec::new(), Vec::new());
        let (mut ands, mut and_ops) = (vec![first], Vec::new());
        loop {
            let sign = self.peek();
            match sign.token {
                Token::Sign("&&") => and_ops.push(self.take().at),
                Token::Sign("||") => or_ops.push(self.take().at),
                _ => break,
            }
            let next = self.relation(0)?;
            if sign.token == Token::Sign("||") {
                ors.push(self.balanced("_&&_", &mut std::mem::take(&mut ands).into_iter(), &and_ops)?);
                and_ops.clear();
            }
            ands.push(next);
        }
        ors.push(self.balanced("_&&_", &mut ands.into_iter(), &and_ops)?);
        self.balanced("_||_", &mut ors.into_iter(), &or_ops)
    }

    fn balanced(&mut self, name: &str, terms: &mut std::vec::IntoIter<Expr>, ops: &[u32]) -> Result<Expr, Stop> {
        let middle = ops.len() / 2;
        let (left, right) = ops.split_at(middle);
        let Some((at, right)) = right.split_first() else { return terms.next().ok_or(Stop) };
        let lhs = self.balanced(name, terms, left)?;
        let rhs = self.balanced(name, terms, right)?;
        self.call(*at, name, vec![lhs, rhs])
    }

    /// Operators of at least this level, by precedence climbing: comparisons, then sums, then products.
    fn relation(&mut self, level: u8) -> Result<Expr, Stop> {
        let mut left = self.unary()?;
        while let Some((function, binds)) = binary(self.peek().token) {
            if binds < level {
                break;
            }
            left = self.operation(left, function, binds)?;
        }
        Ok(left)
    }

    #[inline(never)]
    fn operation(&mut self, left: Expr, function: &str, binds: u8) -> Result<Expr, Stop> {
        let at = self.take().at;
        let right = if binds == 2 { self.unary()? } else { self.relation(binds + 1)? };
        self.call(at, function, vec![left, right])
    }

    fn unary(&mut self) -> Result<Expr, Stop> {
        match self.peek().token {
            Token::Sign("!") => self.signed("!", "!_"),
            Token::Sign("-") if !matches!(self.peek_at(1).token, Token::Int | Token::Float) => self.signed("-", "-_"),
            _ => self.member(),
        }
    }

    #[inline(never)]
    fn signed(&mut self, sign: &'static str, function: &str) -> Result<Expr, Stop> {
        let first = self.peek();
        let mut odd = false;
        while self.peek().token == Token::Sign(sign) {
            self.take();
            odd = !odd;
        }
        if sign == "-" && self.peek().token == Token::Sign("!") {
            return Err(self.no_viable("-"));
        }
        let operand = self.member()?;
        if odd { self.call(first.at, function, vec![operand]) } else { Ok(operand) }
    }

    /// A primary and what is selected, called or indexed on it.
    fn member(&mut self) -> Result<Expr, Stop> {
        let mut expr = self.primary()?;
        while matches!(self.peek().token, Token::Sign("." | "[")) {
            expr = self.postfix(expr)?;
        }
        Ok(expr)
    }

    fn postfix(&mut self, expr: Expr) -> Result<Expr, Stop> {
        if self.peek().token == Token::Sign(".") { self.select(expr) } else { self.index(expr) }
    }

    fn select(&mut self, operand: Expr) -> Result<Expr, Stop> {
        let dot = self.take().at;
        let optional = self.accept("?");
        let name = self.peek();
        match name.token {
            Token::Ident => {}
            Token::Escaped => {
                self.issue(name.at, "unsupported syntax: '`'");
                return Err(Stop);
            }
            _ if optional => return Err(self.unexpected("mismatched", "{IDENTIFIER, ESC_IDENTIFIER}")),
            _ => return Err(self.no_viable(".")),
        }
        self.take();
        if optional {
            let field = self.node(name.at, Kind::Literal(Literal::String(name.text.into())))?;
            return self.call(dot, "_?._", vec![operand, field]);
        }
        if self.peek().token != Token::Sign("(") {
            let kind = Kind::Select { operand: Box::new(operand), field: name.text.into(), test: false };
            return self.node(dot, kind);
        }
        let open = self.take().at;
        let args = self.arguments()?;
        self.method(open, name.text, operand, args)
    }

    fn index(&mut self, operand: Expr) -> Result<Expr, Stop> {
        let open = self.take().at;
        let function = if self.accept("?") { "_[?_]" } else { "_[_]" };
        let index = self.expr()?;
        self.close("]")?;
        self.call(open, function, vec![operand, index])
    }

    fn primary(&mut self) -> Result<Expr, Stop> {
        let token = self.peek();
        match token.token {
            Token::Sign("(") => {
                self.take();
                let inside = self.expr()?;
                self.close(")")?;
                Ok(inside)
            }
            Token::Sign("[") => self.list(),
            Token::Sign("{") => self.map(),
            Token::Sign(".") | Token::Ident => self.name(),
            _ => self.literal(),
        }
    }

    /// A name, a call by name, or a message: all may begin with a dot.
    fn name(&mut self) -> Result<Expr, Stop> {
        let dot = self.accept(".");
        let first = self.peek();
        if first.token != Token::Ident {
            return Err(self.no_viable("."));
        }
        if let Some(length) = self.message_name() {
            return self.message(dot, length);
        }
        self.take();
        if RESERVED.contains(&first.text) {
            let at = if dot { first.at.saturating_sub(1) } else { first.at };
            self.issue(at, format!("reserved identifier: {}", first.text));
        }
        let name: Arc<str> = if dot { format!(".{}", first.text).into() } else { first.text.into() };
        if self.peek().token != Token::Sign("(") {
            return self.node(first.at, Kind::Ident(name));
        }
        let open = self.take().at;
        let args = self.arguments()?;
        self.function(open, &name, args)
    }

    /// How many tokens `a.b.c` takes if a brace follows it.
    fn message_name(&self) -> Option<usize> {
        let mut length = 1;
        while self.peek_at(length).token == Token::Sign(".") && self.peek_at(length + 1).token == Token::Ident {
            length += 2;
        }
        (self.peek_at(length).token == Token::Sign("{")).then_some(length)
    }

    fn message(&mut self, dot: bool, length: usize) -> Result<Expr, Stop> {
        let mut name = if dot { ".".to_owned() } else { String::new() };
        for _ in 0..length {
            name.push_str(self.take().text);
        }
        let open = self.take().at;
        let mut fields = Vec::new();
        while !matches!(self.peek().token, Token::Sign("}" | ",")) {
            let optional = self.accept("?");
            let field = self.peek();
            if field.token != Token::Ident {
                return Err(self.unexpected("mismatched", "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}"));
            }
            self.take();
            let at = self.expect_colon()?;
            let value = self.expr()?;
            fields.push(Field { at, optional, name: field.text.into(), value });
            if !self.accept(",") {
                break;
            }
        }
        if fields.is_empty() {
            self.accept(",");
        }
        self.end_of_list("}")?;
        self.node(open, Kind::Struct { name: name.into(), fields })
    }

    fn list(&mut self) -> Result<Expr, Stop> {
        let open = self.take().at;
        let mut elements = Vec::new();
        while !matches!(self.peek().token, Token::Sign("]" | ",")) {
            let optional = self.accept("?");
            elements.push(Element { optional, value: self.expr()? });
            if !self.accept(",") {
                break;
            }
        }
        if elements.is_empty() {
            self.accept(",");
        }
        self.end_of_list("]")?;
        self.node(open, Kind::List(elements))
    }

    fn map(&mut self) -> Result<Expr, Stop> {
        let open = self.take().at;
        let mut entries = Vec::new();
        while !matches!(self.peek().token, Token::Sign("}" | ",")) {
            let optional = self.accept("?");
            let key = self.expr()?;
            self.expect_colon()?;
            entries.push(Entry { optional, key, value: self.expr()? });
            if !self.accept(",") {
                break;
            }
        }
        if entries.is_empty() {
            self.accept(",");
        }
        self.end_of_list("}")?;
        self.node(open, Kind::Map(entries))
    }

    fn arguments(&mut self) -> Result<Vec<Expr>, Stop> {
        let mut args = Vec::new();
        if self.accept(")") {
            return Ok(args);
        }
        if !starts_operand(self.peek().token) {
            let verb = if starts_operand(self.peek_at(1).token) || self.peek_at(1).token == Token::Sign(")") {
                "extraneous"
            } else {
                "mismatched"
            };
            return Err(self.unexpected(verb, &format!("{{{}", OPERAND.replacen("'(', ", "'(', ')', ", 1))));
        }
        loop {
            args.push(self.expr()?);
            if !self.accept(",") {
                break;
            }
        }
        if !self.accept(")") {
            let verb = if self.peek_at(1).token == Token::Sign(")") { "extraneous" } else { "mismatched" };
            return Err(self.unexpected(verb, "{')', ','}"));
        }
        Ok(args)
    }

    fn literal(&mut self) -> Result<Expr, Stop> {
        let first = self.peek();
        if !starts_operand(first.token) {
            let verb = if starts_operand(self.peek_at(1).token) { "extraneous" } else { "mismatched" };
            return Err(self.unexpected(verb, &format!("{{{OPERAND}")));
        }
        self.take();
        let negative = first.token == Token::Sign("-");
        let token = if negative { self.take() } else { first };
        let sign = if negative { "-" } else { "" };
        let literal = match token.token {
            Token::Int => int(sign, token.text).map(Literal::Int).ok_or("invalid int literal"),
            Token::Uint => uint(token.text).map(Literal::Uint).ok_or("invalid uint literal"),
            Token::Float => double(sign, token.text).map(Literal::Double).ok_or("invalid double literal"),
            Token::String => unescape(token.text, false)
                .map(|bytes| Literal::String(String::from_utf8_lossy(&bytes).into_owned().into())),
            Token::Bytes => {
                unescape(token.text.get(1..).unwrap_or_default(), true).map(|bytes| Literal::Bytes(bytes.into()))
            }
            Token::Sign("true") => Ok(Literal::Bool(true)),
            Token::Sign("false") => Ok(Literal::Bool(false)),
            _ => Ok(Literal::Null),
        };
        let literal = literal.unwrap_or_else(|message| {
            self.issue(first.at, message);
            Literal::Null
        });
        self.node(first.at, Kind::Literal(literal))
    }
}

/// The pieces that know about tokens, errors and nodes.
impl<'s> Parser<'s> {
    fn peek(&self) -> Lexeme<'s> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> Lexeme<'s> {
        let end = Lexeme { token: Token::Eof, at: 0, text: "<EOF>" };
        self.tokens.get(self.next + ahead).or(self.tokens.last()).copied().unwrap_or(end)
    }

    fn take(&mut self) -> Lexeme<'s> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn accept(&mut self, sign: &'static str) -> bool {
        let found = self.peek().token == Token::Sign(sign);
        self.next += usize::from(found);
        found
    }

    fn close(&mut self, sign: &'static str) -> Result<(), Stop> {
        if self.accept(sign) {
            return Ok(());
        }
        let found = self.peek();
        if self.peek_at(1).token == Token::Sign(sign) {
            return Err(self.unexpected("extraneous", &format!("'{sign}'")));
        }
        if matches!(found.token, Token::Eof | Token::Sign(")" | "]" | "}" | ":")) {
            self.issue(found.at, format!("Syntax error: missing '{sign}' at '{}'", escaped(found.text)));
            return Err(Stop);
        }
        Err(self.unexpected("mismatched", &format!("'{sign}'")))
    }

    fn end_of_list(&mut self, sign: &'static str) -> Result<(), Stop> {
        if self.accept(sign) {
            return Ok(());
        }
        let verb = if self.peek_at(1).token == Token::Sign(sign) { "extraneous" } else { "mismatched" };
        let before = self.next.checked_sub(1).and_then(|i| self.tokens.get(i)).map(|t| t.token);
        let expected =
            if before == Some(Token::Sign(",")) { format!("'{sign}'") } else { format!("{{'{sign}', ','}}") };
        Err(self.unexpected(verb, &expected))
    }

    fn expect_colon(&mut self) -> Result<u32, Stop> {
        let found = self.peek();
        if self.accept(":") {
            return Ok(found.at);
        }
        if self.peek_at(1).token == Token::Sign(":") {
            return Err(self.unexpected("extraneous", "':'"));
        }
        if starts_operand(found.token) {
            self.issue(found.at, format!("Syntax error: missing ':' at '{}'", escaped(found.text)));
            return Err(Stop);
        }
        Err(self.unexpected("mismatched", "':'"))
    }

    fn unexpected(&mut self, verb: &str, expected: &str) -> Stop {
        let found = self.peek();
        self.issue(found.at, format!("Syntax error: {verb} input '{}' expecting {expected}", escaped(found.text)));
        Stop
    }

    fn no_viable(&mut self, before: &str) -> Stop {
        let found = self.peek();
        let text = if found.token == Token::Eof { String::new() } else { escaped(found.text) };
        self.issue(found.at, format!("Syntax error: no viable alternative at input '{before}{text}'"));
        Stop
    }

    fn too_deep(&mut self) -> Stop {
        self.issues.push(Issue { at: None, message: format!("expression recursion limit exceeded: {MAX_NESTING}") });
        Stop
    }

    pub(crate) fn issue(&mut self, at: u32, message: impl Into<String>) {
        self.issues.push(Issue { at: Some(at), message: message.into() });
    }

    pub(crate) fn node(&mut self, at: u32, kind: Kind) -> Result<Expr, Stop> {
        let depth = kind.depth();
        if depth > MAX_DEPTH || self.ids >= MAX_NODES {
            return Err(self.too_deep());
        }
        self.ids += 1;
        Ok(Expr { id: self.ids, at, depth, kind })
    }

    pub(crate) fn call(&mut self, at: u32, function: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        self.node(at, Kind::Call { function: function.into(), target: None, args })
    }
}

fn starts_operand(token: Token) -> bool {
    match token {
        Token::Eof | Token::Escaped => false,
        Token::Sign(sign) => matches!(sign, "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null"),
        _ => true,
    }
}

/// The function of an operator, and how tightly it binds.
fn binary(token: Token) -> Option<(&'static str, u8)> {
    let Token::Sign(sign) = token else { return None };
    Some(match sign {
        "<" => ("_<_", 0),
        "<=" => ("_<=_", 0),
        ">=" => ("_>=_", 0),
        ">" => ("_>_", 0),
        "==" => ("_==_", 0),
        "!=" => ("_!=_", 0),
        "in" => ("@in", 0),
        "+" => ("_+_", 1),
        "-" => ("_-_", 1),
        "*" => ("_*_", 2),
        "/" => ("_/_", 2),
        "%" => ("_%_", 2),
        _ => return None,
    })
}

fn int(sign: &str, text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(&format!("{sign}{hex}"), 16).ok(),
        None => format!("{sign}{text}").parse().ok(),
    }
}

fn uint(text: &str) -> Option<u64> {
    let digits = text.get(..text.len().checked_sub(1)?)?;
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn double(sign: &str, text: &str) -> Option<f64> {
    format!("{sign}{text}").parse().ok().filter(|value: &f64| value.is_finite())
}
