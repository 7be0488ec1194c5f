//! Ferry's scheduler.
