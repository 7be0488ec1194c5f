//! Keeps what libcontainer logs as errors: the reason of a failure is there, its error values only name the step.

use std::fmt::{self, Write as _};
use std::io::{PipeWriter, Write};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Sends every error this process and its forks log to a pipe, a line each.
pub(super) fn collect(into: PipeWriter) {
    // Fails only when it was done before.
    let _ = tracing::subscriber::set_global_default(Complaints(Mutex::new(into)));
}

pub(super) fn write_line(into: &mut PipeWriter, text: &str) {
    let _ = writeln!(into, "{}", text.replace('\n', " "));
}

struct Complaints(Mutex<PipeWriter>);

impl Subscriber for Complaints {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        write_line(&mut self.0.lock(), &format!("complaint{}", line.0));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
