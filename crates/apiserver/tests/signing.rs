//! Who may approve certificates, and whom they may be for.

mod support;

use anyhow::Result;
use base64::Engine as _;
use serde_json::{Value, json};
use support::Api;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

fn request(name: &str, signer: &str, group: &str) -> Result<Value> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
    let pem = params.serialize_request(&key)?.pem()?;
    let pem = base64::engine::general_purpose::STANDARD.encode(pem);
    Ok(json!({
        "metadata": {"name": name}, "spec": {"request": pem, "signerName": signer, "usages": ["client auth"], "username": "forged"},
    }))
}

async fn allow_bob(api: &Api, rules: Value) -> Result<()> {
    let group = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "bob"}, "rules": rules});
    let binding = json!({
        "metadata": {"name": "bob"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bob"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
    });
    for path in ["clusterroles", "clusterrolebindings"] {
        api.json(&format!("DELETE {group}/{path}/bob"), &[], None).await?;
        let object = if path == "clusterroles" { &role } else { &binding };
        let (code, answer) = api.json(&format!("POST {group}/{path}"), &[], Some(object)).await?;
        anyhow::ensure!(code == 201, "{answer}");
    }
    // A read waits for what was written, which is then what authorization sees.
    api.json(&format!("GET {group}/clusterrolebindings/bob"), &[], None).await?;
    Ok(())
}

/// The right to write the approval is not enough: the signer must be one that the user may approve for.
#[tokio::test]
async fn approval_takes_leave_of_the_signer() -> Result<()> {
    let api = Api::start().await?;
    let bob = ("impersonate-user", "bob");
    let write = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests", "certificatesigningrequests/approval"], "verbs": ["*"]});
    let approve = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve"], "resourceNames": ["example.com/*"]});
    allow_bob(&api, json!([write])).await?;
    let (code, created) =
        api.json(&format!("POST {REQUESTS}"), &[bob], Some(&request("a", "example.com/signer", "x")?)).await?;
    assert_eq!((code, &created["spec"]["username"]), (201, &json!("bob")), "{created}");
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    let path = format!("PATCH {REQUESTS}/a/approval");
    let (code, refused) = api.json(&path, &[bob, MERGE], Some(&approved)).await?;
    assert_eq!(code, 403, "{refused}");
    assert_eq!(
        refused["message"],
        "certificatesigningrequests.certificates.k8s.io \"a\" is forbidden: user not permitted to approve requests with signerName \"example.com/signer\""
    );
    allow_bob(&api, json!([write, approve])).await?;
    let (code, answer) = api.json(&path, &[bob, MERGE], Some(&approved)).await?;
    assert_eq!(code, 200, "{answer}");
    Ok(())
}

/// Whoever may write trust bundles vouches only for signers that are theirs.
#[tokio::test]
async fn a_bundle_of_a_signer_takes_leave_of_it() -> Result<()> {
    const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let api = Api::start_with_all_versions().await?;
    let bob = ("impersonate-user", "bob");
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&key)?.pem();
    let own = json!({"metadata": {"name": "own"}, "spec": {"trustBundle": pem}});
    let signers = json!({
        "metadata": {"name": "example.com:signer:a"}, "spec": {"signerName": "example.com/signer", "trustBundle": pem},
    });
    let write = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"], "verbs": ["*"]});
    let attest = json!({
        "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["attest"], "resourceNames": ["example.com/signer"],
    });
    allow_bob(&api, json!([write])).await?;
    let (code, answer) = api.json(&format!("POST {BUNDLES}"), &[bob], Some(&own)).await?;
    assert_eq!(code, 201, "{answer}");
    let (code, refused) = api.json(&format!("POST {BUNDLES}"), &[bob], Some(&signers)).await?;
    assert_eq!(code, 403, "{refused}");
    assert_eq!(
        refused["message"],
        "clustertrustbundles.certificates.k8s.io \"example.com:signer:a\" is forbidden: user not permitted to attest for signerName \"example.com/signer\""
    );
    allow_bob(&api, json!([write, attest])).await?;
    let (code, answer) = api.json(&format!("POST {BUNDLES}"), &[bob], Some(&signers)).await?;
    assert_eq!(code, 201, "{answer}");
    // What the garbage collector must be able to do needs no leave.
    allow_bob(&api, json!([write])).await?;
    let path = format!("PATCH {BUNDLES}/example.com:signer:a");
    let finalizers = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    assert_eq!(api.json(&path, &[bob, MERGE], Some(&finalizers)).await?.0, 200);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(api.json(&path, &[bob, MERGE], Some(&labels)).await?.0, 403);
    Ok(())
}

#[tokio::test]
async fn nobody_becomes_an_administrator_by_asking() -> Result<()> {
    let api = Api::start().await?;
    let asked = request("root", "kubernetes.io/kube-apiserver-client", "system:masters")?;
    let (code, refused) = api.json(&format!("POST {REQUESTS}"), &[], Some(&asked)).await?;
    assert_eq!(code, 403, "{refused}");
    let (code, answer) = api
        .json(&format!("POST {REQUESTS}"), &[], Some(&request("user", "kubernetes.io/kube-apiserver-client", "dev")?))
        .await?;
    assert_eq!(code, 201, "{answer}");
    Ok(())
}

/// A request whose key is not the sender's is not signed.
#[tokio::test]
async fn a_request_must_be_signed_by_its_own_key() -> Result<()> {
    let api = Api::start().await?;
    let mut asked = request("a", "example.com/signer", "x")?;
    let engine = base64::engine::general_purpose::STANDARD;
    let pem = String::from_utf8(engine.decode(asked["spec"]["request"].as_str().unwrap_or_default())?)?;
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes())?;
    let mut der = block.contents;
    if let Some(last) = der.last_mut() {
        *last ^= 1;
    }
    let body = engine.encode(der);
    let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n");
    asked["spec"]["request"] = engine.encode(pem).into();
    let (code, refused) = api.json(&format!("POST {REQUESTS}"), &[], Some(&asked)).await?;
    assert_eq!((code, &refused["details"]["causes"][0]["field"]), (422, &json!("spec.request")), "{refused}");
    Ok(())
}
