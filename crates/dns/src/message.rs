//! From request bytes to a question, and from an answer to response bytes.

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::Record;

use crate::answer::Question;

/// What fits without EDNS (RFC 1035), and what fits a packet on any network (the DNS flag day of 2020).
const MIN_PAYLOAD: u16 = 512;
const MAX_PAYLOAD: u16 = 1232;

/// A request that can be answered.
pub(crate) struct Request {
    message: Message,
    pub(crate) question: Question,
}

/// Why a request is answered with a bare error, or not at all.
pub(crate) enum Rejected {
    /// Not a request: answering could make two servers talk for ever.
    Ignore,
    With(Vec<u8>),
}

/// How a response travels.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Request, Rejected> {
    const RESPONSE_BIT: u8 = 0x80;
    if bytes.len() < 12 || bytes.get(2).is_none_or(|flags| flags & RESPONSE_BIT != 0) {
        return Err(Rejected::Ignore);
    }
    let Ok(message) = Message::from_vec(bytes) else {
        let id = u16::from_be_bytes([bytes.first().copied().unwrap_or(0), bytes.get(1).copied().unwrap_or(0)]);
        return Err(encoded(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)));
    };
    let refuse = |code| Err(encoded(respond(&message, code)));
    if message.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    if message.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
        return refuse(ResponseCode::BADVERS);
    }
    let [query] = message.queries.as_slice() else { return refuse(ResponseCode::FormErr) };
    let question = Question::new(query);
    Ok(Request { message, question })
}

fn encoded(message: Message) -> Rejected {
    message.to_vec().map_or(Rejected::Ignore, Rejected::With)
}

fn respond(request: &Message, code: ResponseCode) -> Message {
    let mut response = Message::new(request.metadata.id, MessageType::Response, request.metadata.op_code);
    response.metadata = Metadata::response_from_request(&request.metadata);
    response.metadata.recursion_available = true;
    response.metadata.response_code = code;
    response.add_queries(request.queries.iter().cloned());
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_PAYLOAD);
        edns.set_rcode_high((u16::from(code) >> 4) as u8);
        response.set_edns(edns);
    }
    response
}

/// The sections of a response.
#[derive(Default)]
pub(crate) struct Sections {
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
}

impl Request {
    /// Over UDP, what does not fit is left out and the client told to ask over TCP.
    pub(crate) fn response(
        &self,
        code: ResponseCode,
        authoritative: bool,
        sections: Sections,
        transport: Transport,
    ) -> Vec<u8> {
        let mut response = respond(&self.message, code);
        response.metadata.authoritative = authoritative;
        response.answers = sections.answers;
        response.authorities = sections.authorities;
        response.additionals = sections.additionals;
        let limit = match transport {
            Transport::Tcp => usize::from(u16::MAX),
            Transport::Udp => usize::from(self.payload()),
        };
        fit(response, limit)
    }

    fn payload(&self) -> u16 {
        self.message.edns.as_ref().map_or(MIN_PAYLOAD, |edns| edns.max_payload().clamp(MIN_PAYLOAD, MAX_PAYLOAD))
    }
}

fn fit(mut response: Message, limit: usize) -> Vec<u8> {
    loop {
        // What does not encode is a name from the outside that is too long; the client sees a server failure.
        let bytes = response.to_vec().unwrap_or_else(|_| failure(&response));
        if bytes.len() <= limit || (response.answers.is_empty() && response.additionals.is_empty()) {
            return bytes;
        }
        // Additional records are a courtesy; without them nothing is missing.
        if response.additionals.is_empty() {
            response.metadata.truncation = true;
            let keep = response.answers.len() * limit / bytes.len().max(1);
            response.answers.truncate(keep.min(response.answers.len() - 1));
        }
        response.additionals.clear();
    }
}

fn failure(response: &Message) -> Vec<u8> {
    let failure = Message::error_msg(response.metadata.id, response.metadata.op_code, ResponseCode::ServFail);
    failure.to_vec().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, RecordType};

    use super::*;

    fn request(edns: Option<u16>) -> Message {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii("many.default.svc.cluster.local.").unwrap(), RecordType::A));
        if let Some(payload) = edns {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            message.set_edns(edns);
        }
        message
    }

    #[track_caller]
    fn check(edns: Option<u16>, records: usize, transport: Transport, want_truncated: bool, max: usize) {
        let request = parse(&request(edns).to_vec().unwrap()).ok().unwrap();
        let record = |n: usize| {
            Record::from_rdata(request.question.name.clone(), 5, RData::A(A::new(10, 0, (n / 256) as u8, n as u8)))
        };
        let sections = Sections { answers: (0..records).map(record).collect(), ..Default::default() };
        let bytes = request.response(ResponseCode::NoError, true, sections, transport);
        assert!(bytes.len() <= max, "{} bytes", bytes.len());
        let response = Message::from_vec(&bytes).unwrap();
        assert_eq!(response.metadata.truncation, want_truncated);
        assert_eq!(response.answers.len() == records, !want_truncated);
        assert_eq!(response.edns.is_some(), edns.is_some());
        assert!(!response.answers.is_empty());
    }

    #[test]
    fn responses_fit_what_the_client_takes() {
        check(None, 5, Transport::Udp, false, 512);
        check(None, 100, Transport::Udp, true, 512);
        check(Some(4096), 60, Transport::Udp, false, 1232);
        check(Some(4096), 1000, Transport::Udp, true, 1232);
        check(None, 1000, Transport::Tcp, false, 65_535);
    }

    fn rejection(bytes: &[u8]) -> Option<ResponseCode> {
        match parse(bytes) {
            Ok(_) => panic!("accepted"),
            Err(Rejected::Ignore) => None,
            Err(Rejected::With(bytes)) => Some(Message::from_vec(&bytes).unwrap().metadata.response_code),
        }
    }

    #[test]
    fn what_cannot_be_answered_is_refused_or_ignored() {
        assert_eq!(rejection(&[1, 2, 3]), None);
        let mut response = request(None);
        response.metadata.message_type = MessageType::Response;
        assert_eq!(rejection(&response.to_vec().unwrap()), None);
        let mut torn = request(None).to_vec().unwrap();
        torn.truncate(20);
        assert_eq!(rejection(&torn), Some(ResponseCode::FormErr));
        let mut update = request(None);
        update.metadata.op_code = OpCode::Update;
        assert_eq!(rejection(&update.to_vec().unwrap()), Some(ResponseCode::NotImp));
        let mut future = request(Some(1232));
        future.edns.as_mut().unwrap().set_version(1);
        // The code has two names.
        assert_eq!(rejection(&future.to_vec().unwrap()).map(u16::from), Some(u16::from(ResponseCode::BADVERS)));
        let mut empty = request(None);
        empty.queries.clear();
        assert_eq!(rejection(&empty.to_vec().unwrap()), Some(ResponseCode::FormErr));
    }
}
