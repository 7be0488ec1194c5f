//! Ferry's proxy.
