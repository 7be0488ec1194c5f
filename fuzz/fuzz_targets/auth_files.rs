//! What a server is told about whom to believe and whom to let: each file that flags name, in every role.
#![no_main]

use std::io::Write as _;
use std::time::Duration;

use apiserver::{AuthSettings, WebhookSettings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut file = tempfile::NamedTempFile::new().expect("a place for a file");
    file.write_all(bytes).expect("a file that can be written");
    let path = file.path().to_owned();
    let webhook = || WebhookSettings {
        config_file: path.clone(),
        version: "v1".into(),
        authorized_ttl: Duration::from_secs(1),
        unauthorized_ttl: Duration::from_secs(1),
    };
    let modes = |mode: &str| vec![mode.to_owned()];
    let settings = [
        AuthSettings { token_auth_file: Some(path.clone()), ..AuthSettings::default() },
        AuthSettings { authentication_config: Some(path.clone()), ..AuthSettings::default() },
        AuthSettings { authorization_config: Some(path.clone()), ..AuthSettings::default() },
        AuthSettings { token_webhook: Some(webhook()), ..AuthSettings::default() },
        AuthSettings {
            authorization_modes: modes("ABAC"),
            authorization_policy_file: Some(path.clone()),
            ..AuthSettings::default()
        },
        AuthSettings {
            authorization_modes: modes("Webhook"),
            authorization_webhook: Some(webhook()),
            ..AuthSettings::default()
        },
    ];
    // Believed or refused, both are right; it must end.
    for settings in settings {
        let _ = settings.check();
    }
});
