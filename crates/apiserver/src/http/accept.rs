//! How a client wants its answer: the `Accept` header as upstream reads it.
//!
//! There, two look at it. A router knows media types only, and no ranges but `*/*`; then negotiation knows ranges, weights and parameters.
//! An answer has to suit both, and each refuses in its own words.

use api::ApiError;
use api::status::Details;
use http::{HeaderMap, header};

use super::Query;

pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// What everything is given as, the first to whoever does not say.
const MEDIA_TYPES: [(&str, Encoding); 3] =
    [("application/json", Encoding::Json), ("application/yaml", Encoding::Yaml), (PROTOBUF, Encoding::Protobuf)];
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const ACCEPTED_STREAMS: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
/// Clients behind which people sit.
const PEOPLE: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accept {
    pub encoding: Encoding,
    pub form: Form,
    /// The version of meta.k8s.io a Table or partial object is asked in.
    pub meta_version: &'static str,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Encoding {
    #[default]
    Json,
    PrettyJson,
    Yaml,
    Protobuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    #[default]
    Whole,
    Table,
    PartialObjectMetadata,
    PartialObjectMetadataList,
    /// All of discovery at once.
    Aggregated,
}

/// What may be asked of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// A resource in any form.
    Resource,
    /// One that has no columns.
    WithoutTable,
    /// One that has no protobuf form; its metadata alone has one.
    Custom,
    /// One form only, as errors and discovery have.
    Plain,
    /// All of discovery, and nothing else.
    Aggregated,
}

impl Accept {
    pub(crate) fn of(headers: &HeaderMap, query: &Query, offer: Offer) -> Result<Self, ApiError> {
        Self::negotiate(headers, query, offer).ok_or_else(|| refuse(ACCEPTED))
    }

    /// `None` where the client takes nothing that is offered.
    pub(crate) fn negotiate(headers: &HeaderMap, query: &Query, offer: Offer) -> Option<Self> {
        let text = asked(headers);
        let accept = match text.is_empty() && offer != Offer::Aggregated {
            true => Self::default(),
            false => first(text, |clause| clause.choose(offer))?,
        };
        let is_pretty = accept.encoding == Encoding::Json && is_for_people(headers, query);
        Some(if is_pretty { Self { encoding: Encoding::PrettyJson, ..accept } } else { accept })
    }

    /// The same for what goes on for long, which not every encoding can.
    pub(crate) fn streamed(self) -> Result<Self, ApiError> {
        if self.encoding == Encoding::Yaml { Err(refuse(ACCEPTED_STREAMS)) } else { Ok(self) }
    }

    pub(crate) fn content_type(&self) -> &'static str {
        match self.encoding {
            Encoding::Json | Encoding::PrettyJson => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => PROTOBUF,
        }
    }
}

/// How a page about the server is wanted.
pub(crate) enum PageForm {
    Text,
    /// As an object of a version of config.k8s.io.
    Object(Encoding, &'static str),
}

/// The form in which a page, that is of a `kind` where it is an object, is wanted.
pub(crate) fn page_form(headers: &HeaderMap, kind: &str) -> Option<PageForm> {
    let text = asked(headers);
    if text.trim().is_empty() {
        return Some(PageForm::Text);
    }
    first(text, |clause| {
        let object = clause.conversion();
        let version = match object {
            (Some(asked), Some("config.k8s.io"), Some("v1alpha1")) if asked == kind => Some("v1alpha1"),
            (Some(asked), Some("config.k8s.io"), Some("v1beta1")) if asked == kind => Some("v1beta1"),
            _ => None,
        };
        let encoded = [("application/json", Encoding::Json), ("application/yaml", Encoding::Yaml)];
        let found = encoded.iter().find(|(media, _)| clause.means(media)).zip(version);
        let is_text = clause.means("text/plain") && object == (None, None, None);
        found.map(|((_, encoding), version)| PageForm::Object(*encoding, version)).or(is_text.then_some(PageForm::Text))
    })
}

/// What the router says to a client that takes none of `produced`.
pub(crate) fn check_produced(headers: &HeaderMap, produced: &[&str]) -> Result<(), ApiError> {
    let text = asked(headers);
    let takes = |range: &str| {
        let media = range.split(';').next().unwrap_or_default().trim_matches(' ');
        media == "*/*" || produced.contains(&media)
    };
    if text.is_empty() || text.split(',').any(takes) {
        return Ok(());
    }
    let message = format!("406: Not Acceptable\n\nAvailable representations: {}", produced.join(", "));
    Err(ApiError::not_acceptable(message).with(Details::default()))
}

fn asked(headers: &HeaderMap) -> &str {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn refuse(accepted: &str) -> ApiError {
    ApiError::not_acceptable(format!("only the following media types are accepted: {accepted}"))
}

fn is_for_people(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(said) = query.get("pretty") {
        return matches!(said, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    PEOPLE.iter().any(|name| agent.starts_with(name))
}

/// `application/json;as=Table;q=0.5`
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    parameters: &'a str,
    weight: f32,
}

fn clauses(text: &str) -> impl Iterator<Item = Clause<'_>> {
    text.split(',').filter_map(|part| {
        let (media, parameters) = part.split_once(';').unwrap_or((part, ""));
        let (kind, subtype) = match media.trim_matches(' ').split_once('/') {
            Some((_, subtype)) if subtype.contains('/') || subtype.is_empty() => return None,
            Some((kind, subtype)) => (kind, subtype),
            None if media.trim_matches(' ') == "*" => ("*", "*"),
            None => return None,
        };
        let mut clause =
            Clause { kind: kind.trim_matches(' '), subtype: subtype.trim_matches(' '), parameters, weight: 1.0 };
        if let Some((_, weight)) = clause.parameters().filter(|(key, _)| *key == "q").last() {
            clause.weight = weight.parse().unwrap_or(0.0);
        }
        Some(clause)
    })
}

/// What comes of the first clause that anything comes of.
fn first<'a, T>(text: &'a str, chosen: impl Fn(&Clause<'a>) -> Option<T>) -> Option<T> {
    if !text.contains('*') && !text.contains("q=") {
        return clauses(text).find_map(|clause| chosen(&clause));
    }
    let mut sorted: Vec<Clause<'_>> = clauses(text).collect();
    sort(&mut sorted);
    sorted.iter().find_map(chosen)
}

/// Upstream's order is none by the rules: what is more exact may pass what weighs more. So it is sorted in upstream's way.
fn sort(clauses: &mut [Clause<'_>]) {
    let precedes = |a: &Clause<'_>, b: &Clause<'_>| {
        a.weight > b.weight || (a.kind != "*" && b.kind == "*") || (a.subtype != "*" && b.subtype == "*")
    };
    for end in 1..clauses.len() {
        for at in (1..=end).rev() {
            match clauses.get(at - 1..=at) {
                Some([before, this]) if precedes(this, before) => clauses.swap(at - 1, at),
                _ => break,
            }
        }
    }
}

impl<'a> Clause<'a> {
    fn parameters(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.parameters.split(';').filter_map(|parameter| {
            let (key, value) = parameter.split_once('=')?;
            (!value.is_empty() && !value.contains('=')).then_some((key.trim_matches(' '), value))
        })
    }

    /// What is given to whoever asks like this.
    fn choose(&self, offer: Offer) -> Option<Accept> {
        let meant = MEDIA_TYPES.iter().filter(|(media, _)| self.means(media));
        meant.into_iter().find_map(|(_, encoding)| self.shaped(*encoding, offer))
    }

    fn means(&self, media: &str) -> bool {
        match (self.kind, self.subtype) {
            ("*", "*") => true,
            (kind, subtype) => {
                let rest = media.strip_prefix(kind).and_then(|rest| rest.strip_prefix('/'));
                rest.is_some_and(|rest| subtype == "*" || rest == subtype)
            }
        }
    }

    /// The kind, group and version that the object is to be turned into.
    fn conversion(&self) -> (Option<&'a str>, Option<&'a str>, Option<&'a str>) {
        let named = |name: &str| {
            self.parameters().filter(|(key, _)| *key == name).last().map(|(_, value)| value.trim_matches(' '))
        };
        (named("as"), named("g"), named("v"))
    }

    fn shaped(&self, encoding: Encoding, offer: Offer) -> Option<Accept> {
        let mut is_pretty = false;
        for (key, value) in self.parameters() {
            let value = value.trim_matches(' ');
            match key {
                "stream" if encoding == Encoding::Yaml || value != "watch" => return None,
                "sv" if offer == Offer::Plain || value != "v1" => return None,
                "pretty" => is_pretty = value == "1",
                _ => (),
            }
        }
        let (form, meta_version) = match self.conversion() {
            (None, None, None) => (Form::Whole, ""),
            (Some(kind), Some("meta.k8s.io"), Some("v1")) => (Form::of(kind)?, "v1"),
            (Some(kind), Some("meta.k8s.io"), Some("v1beta1")) => (Form::of(kind)?, "v1beta1"),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => (Form::Aggregated, ""),
            _ => return None,
        };
        let is_offered = match (offer, form) {
            (Offer::Aggregated, form) => form == Form::Aggregated,
            (_, Form::Aggregated) => false,
            (Offer::Plain, form) => form == Form::Whole,
            // A table's cells are any JSON.
            (offer, Form::Table) => offer != Offer::WithoutTable && encoding != Encoding::Protobuf,
            (Offer::Custom, Form::Whole) => encoding != Encoding::Protobuf,
            _ => true,
        };
        let encoding = if is_pretty && encoding == Encoding::Json { Encoding::PrettyJson } else { encoding };
        is_offered.then_some(Accept { encoding, form, meta_version })
    }
}

impl Form {
    fn of(kind: &str) -> Option<Self> {
        match kind {
            "Table" => Some(Self::Table),
            "PartialObjectMetadata" => Some(Self::PartialObjectMetadata),
            "PartialObjectMetadataList" => Some(Self::PartialObjectMetadataList),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clause_that_counts_is_upstreams() {
        check("", "json");
        check("application/json;q=0.1, application/yaml;q=0.9", "yaml");
        check("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "json");
        check("application/*", "json");
        check("application/yaml;q=0.5,application/*;q=0.6", "json");
        check("application/*;q=0.6,application/yaml;q=0.5", "yaml");
        check("*", "json");
        check("APPLICATION/JSON", "");
        check("application/json;q=0", "json");
        check("application/json;charset=utf-8;odd=1", "json");
        check("application/json;pretty=1", "pretty");
        check("application/json;stream=watch", "json");
        check("application/json;stream=odd", "");
        check("application/yaml;stream=watch", "");
        check("application/json;as=Table;g=meta.k8s.io;v=v2, application/yaml", "yaml");
        check(
            "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json;as=Table;g=meta.k8s.io;v=v1",
            "json Table v1",
        );
        check("application/json;v=v1", "");
    }

    #[track_caller]
    fn check(header: &'static str, want: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, header::HeaderValue::from_static(header));
        let got = Accept::negotiate(&headers, &Query::default(), Offer::Resource);
        let told = got.map_or(String::new(), |accept| {
            let encoding = match accept.encoding {
                Encoding::Json => "json",
                Encoding::PrettyJson => "pretty",
                Encoding::Yaml => "yaml",
                Encoding::Protobuf => "protobuf",
            };
            if accept.form == Form::Whole {
                encoding.into()
            } else {
                format!("{encoding} {:?} {}", accept.form, accept.meta_version)
            }
        });
        assert_eq!(told, want, "{header}");
    }

    #[test]
    fn people_are_given_lines() {
        let query = |text| Query::parse(Some(text));
        let agent = |name| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, header::HeaderValue::from_static(name));
            headers
        };
        assert!(is_for_people(&agent("curl/8.0"), &query("")));
        assert!(is_for_people(&agent("Mozilla/5.0 (X11)"), &query("pretty")));
        assert!(!is_for_people(&agent("curl/8.0"), &query("pretty=0")));
        assert!(is_for_people(&agent("kubectl"), &query("pretty=true")));
        assert!(!is_for_people(&agent("kubectl"), &query("pretty")));
    }
}
