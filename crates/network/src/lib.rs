//! Ferry's network.
