//! Ferry's client.
