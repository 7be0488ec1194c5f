//! ID tokens of OpenID Connect issuers: whose claims become whose name.

mod keys;

use std::path::PathBuf;
use std::sync::Arc;

use api::{Object, ObjectExt as _, UserInfo};
use cel::Type;
use serde_json::{Value, json};

use self::keys::KeySet;
use super::expression::Expression;
use super::jwt::{ALGORITHMS, Key, Unverified};
use super::settings::OidcSettings;
use crate::outbound::connect::Trust;
use crate::outbound::{Outbound, OutboundError};

const LEEWAY_SECONDS: i64 = 10;

/// One issuer, and how its claims are read.
pub(crate) struct Issuer {
    url: String,
    audiences: Vec<String>,
    username: Mapping,
    groups: Option<Mapping>,
    uid: Option<Mapping>,
    extra: Vec<(String, Expression)>,
    required: Vec<(String, String)>,
    claim_rules: Vec<Expression>,
    user_rules: Vec<Expression>,
    algorithms: Vec<String>,
    keys: KeySet,
}

enum Mapping {
    Claim { name: String, prefix: String },
    Expression(Expression),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OidcError {
    #[error("oidc: authenticator not initialized: {0}")]
    Keys(#[from] OutboundError),
    #[error("oidc: authenticator not initialized: {0}")]
    Discovery(String),
    #[error("oidc: authenticator not initialized: {path} holds no keys that can be used: {why}")]
    File { path: PathBuf, why: String },
    #[error("oidc: authenticator not initialized: the issuer did not answer in time")]
    Timeout,
    /// A failure that several requests wait for.
    #[error(transparent)]
    Shared(#[from] Arc<Self>),
    #[error("oidc: verify token: {0}")]
    Verify(String),
    #[error("oidc: {0}")]
    Claims(String),
}

impl Issuer {
    /// From the flags of old.
    pub(super) fn from_flags(flags: &OidcSettings, jwks_file: Option<PathBuf>) -> Result<Self, String> {
        let prefix = match (flags.username_prefix.as_str(), flags.username_claim.as_str()) {
            ("-", _) => String::new(),
            ("", "email") => String::new(),
            ("", _) => format!("{}#", flags.issuer_url),
            (prefix, _) => prefix.to_owned(),
        };
        let authority =
            flags.ca_file.as_ref().map(|path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display())));
        let authority = authority.transpose()?;
        let groups = (!flags.groups_claim.is_empty())
            .then(|| Mapping::Claim { name: flags.groups_claim.clone(), prefix: flags.groups_prefix.clone() });
        if let Some(odd) = flags.signing_algs.iter().find(|name| !ALGORITHMS.contains(&name.as_str())) {
            return Err(format!("oidc: unsupported signing alg: {odd:?}"));
        }
        let (url, http) = (&flags.issuer_url, client(&flags.issuer_url, authority.as_deref())?);
        let keys = KeySet::new(url, well_known(url), http, jwks_file).map_err(|error| error.to_string())?;
        Ok(Self {
            audiences: vec![flags.client_id.clone()],
            username: Mapping::Claim { name: flags.username_claim.clone(), prefix },
            groups,
            uid: None,
            extra: Vec::new(),
            claim_rules: Vec::new(),
            user_rules: Vec::new(),
            required: flags.required_claims.clone(),
            algorithms: flags.signing_algs.clone(),
            url: url.clone(),
            keys,
        })
    }

    /// From one entry of an AuthenticationConfiguration.
    pub(super) fn from_configuration(jwt: &Object, jwks_file: Option<PathBuf>) -> Result<Self, String> {
        let list = |path: &[&str]| -> Vec<Object> {
            let items = jwt.at(path).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(|item| item.as_object().cloned()).collect()
        };
        let url = jwt.text(&["issuer", "url"]);
        let discovery = match jwt.text(&["issuer", "discoveryURL"]) {
            "" => well_known(url),
            other if other == url => return Err("issuer.discoveryURL: must be different from URL".into()),
            other => other.to_owned(),
        };
        let audiences: Vec<String> = jwt
            .at(&["issuer", "audiences"])
            .and_then(|list| serde_json::from_value(list.clone()).ok())
            .unwrap_or_default();
        if audiences.is_empty() {
            return Err("issuer.audiences: at least one issuer.audiences is required".into());
        }
        if audiences.len() > 1 && jwt.text(&["issuer", "audienceMatchPolicy"]) != "MatchAny" {
            return Err(
                "issuer.audienceMatchPolicy: audienceMatchPolicy must be set to MatchAny for multiple audiences".into(),
            );
        }
        if !jwt.text(&["issuer", "egressSelectorType"]).is_empty() {
            return Err("issuer.egressSelectorType: egress selectors are not supported".into());
        }
        let mapping = |name: &str, wanted: &[Type]| -> Result<Option<Mapping>, String> {
            let part = |field: &str| jwt.text(&["claimMappings", name, field]);
            let prefix = jwt.at(&["claimMappings", name, "prefix"]).and_then(Value::as_str);
            match (part("claim"), part("expression"), prefix) {
                ("", "", _) => Ok(None),
                ("", text, None) => {
                    let made = Expression::compile(text, "claims", wanted, "");
                    Ok(Some(Mapping::Expression(
                        made.map_err(|why| format!("claimMappings.{name}.expression: {why}"))?,
                    )))
                }
                ("", _, Some(_)) => {
                    Err(format!("claimMappings.{name}.prefix: prefix can't be set when expression is set"))
                }
                (_, text, _) if !text.is_empty() => {
                    Err(format!("claimMappings.{name}: claim and expression can't both be set"))
                }
                (claim, _, None) if name == "uid" => {
                    Ok(Some(Mapping::Claim { name: claim.to_owned(), prefix: String::new() }))
                }
                (_, _, None) => Err(format!(
                    "claimMappings.{name}.prefix: prefix is required when claim is set. It can be set to an empty string to disable prefixing"
                )),
                (claim, _, Some(prefix)) => {
                    Ok(Some(Mapping::Claim { name: claim.to_owned(), prefix: prefix.to_owned() }))
                }
            }
        };
        let rules = |field: &str, variable: &str| -> Result<Vec<Expression>, String> {
            let with =
                list(&[field]).into_iter().enumerate().filter(|(_, rule)| !rule.text(&["expression"]).is_empty());
            let made = with.map(|(index, rule)| {
                let made =
                    Expression::compile(rule.text(&["expression"]), variable, &[Type::Bool], rule.text(&["message"]));
                made.map_err(|why| format!("{field}[{index}].expression: {why}"))
            });
            made.collect()
        };
        let extra = list(&["claimMappings", "extra"]).into_iter().enumerate().map(|(index, extra)| {
            let made = Expression::compile(extra.text(&["valueExpression"]), "claims", &several(), "");
            let made = made.map_err(|why| format!("claimMappings.extra[{index}].valueExpression: {why}"))?;
            Ok::<_, String>((extra.text(&["key"]).to_owned(), made))
        });
        let authority = jwt.text(&["issuer", "certificateAuthority"]);
        if jwks_file.is_some() && !jwt.text(&["issuer", "discoveryURL"]).is_empty() {
            return Err("issuer.discoveryURL: cannot be set where the keys are in a file".into());
        }
        let http = client(url, (!authority.is_empty()).then_some(authority.as_bytes()))?;
        Ok(Self {
            audiences,
            username: mapping("username", &[Type::String])?
                .ok_or("claimMappings.username: claim or expression is required")?,
            groups: mapping("groups", &several())?,
            uid: mapping("uid", &[Type::String])?,
            extra: extra.collect::<Result<_, _>>()?,
            claim_rules: rules("claimValidationRules", "claims")?,
            user_rules: rules("userValidationRules", "user")?,
            required: list(&["claimValidationRules"])
                .iter()
                .filter(|rule| rule.text(&["expression"]).is_empty())
                .map(|rule| (rule.text(&["claim"]).to_owned(), rule.text(&["requiredValue"]).to_owned()))
                .collect(),
            algorithms: ALGORITHMS.map(ToOwned::to_owned).to_vec(),
            keys: KeySet::new(url, discovery, http, jwks_file).map_err(|error| error.to_string())?,
            url: url.to_owned(),
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Reads its keys, unless they are known.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) async fn check(&self) -> Result<(), OidcError> {
        if self.keys.known().is_empty() {
            self.keys.refreshed().await?;
        }
        Ok(())
    }

    pub(super) fn is_of(&self, token: &Unverified<'_>) -> bool {
        token.claims.text(&["iss"]) == self.url
    }

    pub(super) async fn authenticate(&self, token: &Unverified<'_>, now: i64) -> Result<UserInfo, OidcError> {
        self.check_claims(token, now)?;
        let signed = |keys: &[Key]| {
            let fits = |key: &&Key| token.key_id.is_empty() || key.id == token.key_id;
            keys.iter().filter(fits).any(|key| key.signed(token))
        };
        if !signed(&self.keys.known()) && !signed(&self.keys.refreshed().await?) {
            return Err(OidcError::Verify("failed to verify signature: failed to verify id token signature".into()));
        }
        self.user(&token.claims)
    }

    fn check_claims(&self, token: &Unverified<'_>, now: i64) -> Result<(), OidcError> {
        let refuse = |why: String| Err(OidcError::Verify(why));
        if !self.algorithms.contains(&token.algorithm) {
            return refuse(format!("id token signed with unsupported algorithm {:?}", token.algorithm));
        }
        let time = |claim: &str| token.claims.get(claim).and_then(Value::as_i64);
        if time("exp").is_none_or(|at| at + LEEWAY_SECONDS < now) {
            return refuse("token is expired".into());
        }
        if time("nbf").is_some_and(|at| at - LEEWAY_SECONDS > now) {
            return refuse("current time before the nbf (not before) time".into());
        }
        let meant = match token.claims.get("aud") {
            Some(Value::String(one)) => self.audiences.contains(one),
            Some(Value::Array(several)) => {
                several.iter().filter_map(Value::as_str).any(|one| self.audiences.iter().any(|own| own == one))
            }
            _ => false,
        };
        if meant { Ok(()) } else { refuse(format!("expected audience in {:?}", self.audiences)) }
    }

    fn user(&self, claims: &Object) -> Result<UserInfo, OidcError> {
        let refuse = |why: String| OidcError::Claims(why);
        let whole = Value::Object(claims.clone());
        let mut user = UserInfo { name: self.name(claims, &whole).map_err(refuse)?, ..UserInfo::default() };
        user.groups = match &self.groups {
            None => Vec::new(),
            Some(Mapping::Expression(expression)) => expression
                .texts(&whole)
                .map_err(|why| refuse(format!("error evaluating group claim expression: {why}")))?,
            Some(Mapping::Claim { name, prefix }) => groups(claims, name, prefix).map_err(refuse)?,
        };
        user.uid = match &self.uid {
            None => String::new(),
            Some(Mapping::Expression(expression)) => expression
                .text(&whole)
                .map_err(|why| refuse(format!("error evaluating uid claim expression: {why}")))?,
            Some(Mapping::Claim { name, .. }) => {
                let found = claims.get(name).and_then(Value::as_str);
                found.ok_or_else(|| refuse(format!("parse uid claim {name:?}: claim not present")))?.to_owned()
            }
        };
        for (key, expression) in &self.extra {
            let values = expression.texts(&whole);
            let values = values.map_err(|why| refuse(format!("error evaluating extra claim expression: {why}")))?;
            if !values.is_empty() {
                user.extra.insert(key.clone(), values);
            }
        }
        self.check_required(claims).map_err(refuse)?;
        for rule in &self.claim_rules {
            let held = rule.require(&whole);
            held.map_err(|why| refuse(format!("error evaluating claim validation expression: {why}")))?;
        }
        let told = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        for rule in &self.user_rules {
            let held = rule.require(&told);
            held.map_err(|why| refuse(format!("error evaluating user info validation rule: {why}")))?;
        }
        Ok(user)
    }

    fn name(&self, claims: &Object, whole: &Value) -> Result<String, String> {
        let (claim, prefix) = match &self.username {
            Mapping::Expression(expression) => {
                let name = expression.text(whole);
                let name = name.map_err(|why| format!("error evaluating username claim expression: {why}"))?;
                return match name.is_empty() {
                    true => Err("empty username via CEL expression is not allowed".into()),
                    false => Ok(name),
                };
            }
            Mapping::Claim { name, prefix } => (name, prefix),
        };
        let name = claims.get(claim).and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("parse username claims {claim:?}: claim not present"))?;
        if claim == "email" && claims.get("email_verified").is_some_and(|known| known != &Value::Bool(true)) {
            return Err("email not verified".into());
        }
        Ok(format!("{prefix}{name}"))
    }

    fn check_required(&self, claims: &Object) -> Result<(), String> {
        for (claim, value) in &self.required {
            match claims.get(claim).and_then(Value::as_str) {
                None => return Err(format!("required claim {claim} not present in ID token")),
                Some(got) if got != value => {
                    return Err(format!("required claim {claim} value does not match. Got = {got}, want = {value}"));
                }
                Some(_) => (),
            }
        }
        Ok(())
    }
}

fn well_known(url: &str) -> String {
    format!("{}/.well-known/openid-configuration", url.trim_end_matches('/'))
}

fn client(url: &str, authority: Option<&[u8]>) -> Result<Outbound, String> {
    if !url.starts_with("https://") {
        return Err(format!("issuer.url: Invalid value: {url:?}: URL scheme must be https"));
    }
    let trust = authority.map_or(Trust::System, |pem| Trust::Authorities(pem.to_vec()));
    Outbound::new(url, trust).and_then(Outbound::checked).map_err(|error| error.to_string())
}

/// A text, or a list of texts.
fn several() -> [Type; 3] {
    [Type::String, Type::list(Type::String), Type::list(Type::Dyn)]
}

fn groups(claims: &Object, claim: &str, prefix: &str) -> Result<Vec<String>, String> {
    let names = match claims.get(claim) {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(several)) if several.iter().all(Value::is_string) => {
            several.iter().filter_map(Value::as_str).collect()
        }
        Some(_) => return Err(format!("parse groups claim {claim:?}: not a string or an array of strings")),
    };
    Ok(names.iter().map(|name| format!("{prefix}{name}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(more: Value) -> Result<Issuer, String> {
        let mut jwt = json!({
            "issuer": {"url": "https://issuer.example", "audiences": ["me"]},
            "claimMappings": {"username": {"claim": "email", "prefix": "o:"}, "groups": {"claim": "roles", "prefix": "g:"}},
            "claimValidationRules": [{"claim": "hd", "requiredValue": "example"}],
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            jwt[key] = value.clone();
        }
        Issuer::from_configuration(jwt.as_object().unwrap(), None)
    }

    #[track_caller]
    fn check(claims: Value, want: Result<(&str, &str), &str>) {
        let found = issuer(json!({})).unwrap().user(claims.as_object().unwrap());
        let found = found.map(|user| (user.name, user.groups.join(","))).map_err(|error| error.to_string());
        assert_eq!(found, want.map(|(name, groups)| (name.into(), groups.into())).map_err(ToOwned::to_owned));
    }

    #[test]
    fn claims_become_users() {
        check(json!({"email": "a@b", "hd": "example", "roles": ["x", "y"]}), Ok(("o:a@b", "g:x,g:y")));
        check(json!({"email": "a@b", "hd": "example", "roles": "x", "email_verified": true}), Ok(("o:a@b", "g:x")));
        check(json!({"email": "a@b", "hd": "example", "email_verified": false}), Err("oidc: email not verified"));
        check(json!({"email": "a@b"}), Err("oidc: required claim hd not present in ID token"));
        check(json!({"hd": "example"}), Err("oidc: parse username claims \"email\": claim not present"));
        check(
            json!({"email": "a@b", "hd": "other"}),
            Err("oidc: required claim hd value does not match. Got = other, want = example"),
        );
    }

    #[test]
    fn expressions_over_claims_make_and_refuse_users() {
        let made = issuer(json!({
            "claimMappings": {
                "username": {"expression": "claims.sub + '@corp'"}, "groups": {"expression": "claims.roles.filter(r, r != 'x')"},
                "uid": {"expression": "claims.id"}, "extra": [{"key": "example.com/team", "valueExpression": "claims.team"}],
            },
            "claimValidationRules": [{"expression": "claims.hd == 'example'", "message": "elsewhere"}],
            "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "reserved"}],
        }))
        .unwrap();
        let claims = |sub: &str, hd: &str| json!({"sub": sub, "roles": ["x", "y"], "id": "7", "team": "a", "hd": hd});
        let user = made.user(claims("bob", "example").as_object().unwrap()).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str(), user.groups.join(",")), ("bob@corp", "7", "y".into()));
        assert_eq!(user.extra.get("example.com/team"), Some(&vec!["a".to_owned()]));
        let refused = |sub: &str, hd: &str| made.user(claims(sub, hd).as_object().unwrap()).unwrap_err().to_string();
        assert!(refused("bob", "other").ends_with("failed: elsewhere"));
        assert!(refused("system:admin", "example").ends_with("failed: reserved"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_at_start() {
        let refused = |more: Value| issuer(more).err().unwrap_or_default();
        assert!(
            refused(json!({"claimMappings": {"username": {"expression": "claims."}}}))
                .starts_with("claimMappings.username.expression")
        );
        assert!(
            refused(json!({"issuer": {"url": "http://x", "audiences": ["a"]}})).contains("URL scheme must be https")
        );
        assert!(refused(json!({"issuer": {"url": "https://x", "audiences": []}})).contains("audiences"));
        assert!(refused(json!({"claimMappings": {"username": {"claim": "sub"}}})).contains("prefix is required"));
    }
}
