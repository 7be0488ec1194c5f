//! Ferry's runtime.
