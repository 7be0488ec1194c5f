//! Ferry's dns.
