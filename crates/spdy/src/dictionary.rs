//! The words that SPDY/3 seeds its header compression with, fixed by its specification.

/// Each is preceded by its length in four bytes.
const WORDS: &str = "\
    options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-\
    ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-\
    language|content-length|content-location|content-md5|content-range|content-type|date|etag|expect|\
    expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|\
    location|max-forwards|pragma|proxy-authenticate|proxy-authorization|range|referer|retry-after|server|\
    te|trailer|transfer-encoding|upgrade|user-agent|vary|via|warning|www-authenticate|method|get|\
    status|200 OK|version|HTTP/1.1|url|public|set-cookie|keep-alive|origin\
";
/// These follow as they are.
const REST: &str = "\
    100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authori\
    tative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not \
    Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug S\
    ept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,imag\
    e/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,\
    sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.\
";

pub(crate) fn dictionary() -> Vec<u8> {
    let words = WORDS.split('|');
    let mut bytes: Vec<u8> =
        words.flat_map(|word| [&(word.len() as u32).to_be_bytes(), word.as_bytes()].concat()).collect();
    bytes.extend_from_slice(REST.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    /// Peers name the dictionary by its checksum, so one wrong byte would end every connection.
    #[test]
    fn is_the_published_one() {
        let bytes = super::dictionary();
        let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
            let a = (a + u32::from(*byte)) % 65521;
            (a, (b + a) % 65521)
        });
        assert_eq!((bytes.len(), b << 16 | a), (1423, 0xe3c6_a7c2));
    }
}
