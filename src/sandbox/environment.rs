//! What a command inherits of our environment: everything but what looks like a secret.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Names of variables that hold secrets, by long custom, in any case. A `*` stands for any bytes.
const SECRETS: [&str; 30] = [
    "*TOKEN",
    "*_TOKEN_*",
    "*_TOKENS",
    "KEY",
    "*_KEY",
    "*_KEYS",
    "*_KEY_ID",
    "*APIKEY",
    "*SECRET",
    "*SECRETS",
    "*_SECRET_*",
    "*PASSWORD",
    "*PASSWORDS",
    "*_PASSWORD_*",
    "*PASSWD",
    "*PASSPHRASE",
    "PASS",
    "*_PASS",
    "*_PWD",
    "*CREDENTIAL",
    "*CREDENTIALS",
    "*_AUTH",
    "*_PAT",
    "JWT",
    "*_JWT",
    "DSN",
    "*_DSN",
    "PAT",
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
];

/// What still works when everything else is dropped.
const PLAIN: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TZ"];

/// Which variables a command gets.
#[derive(Clone, Debug, Default)]
pub struct EnvRules {
    /// None but the plain ones, and those kept or set.
    pub clear: bool,
    /// Names that are kept whatever they look like.
    pub keep: Vec<OsString>,
    /// Further patterns to drop.
    pub drop: Vec<String>,
    /// Variables set, which win over those inherited.
    pub set: Vec<(OsString, OsString)>,
}

impl EnvRules {
    /// The whole environment of a command, of what `inherited` has.
    pub fn apply(&self, inherited: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
        let plain = |name: &OsStr| PLAIN.iter().any(|p| name == *p);
        let secret = |name: &OsStr| {
            let upper = name.as_bytes().to_ascii_uppercase();
            SECRETS.iter().any(|p| matches(p.as_bytes(), &upper))
                || self.drop.iter().any(|p| matches(p.as_bytes(), name.as_bytes()))
        };
        let wanted = |name: &OsStr| {
            self.keep.iter().any(|k| k == name) || if self.clear { plain(name) } else { !secret(name) }
        };
        let set = |name: &OsStr| self.set.iter().any(|(s, _)| s == name);
        inherited.filter(|(name, _)| wanted(name) && !set(name)).chain(self.set.iter().cloned()).collect()
    }
}

/// Whether `name` is what `pattern` says, in which `*` stands for any bytes.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        Some((first, rest)) => name.split_first().is_some_and(|(n, more)| n == first && matches(rest, more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rules: &EnvRules, has: &[&str]) -> Vec<String> {
        let inherited = has.iter().map(|n| (OsString::from(n), OsString::from("1")));
        rules.apply(inherited).into_iter().map(|(k, _)| k.into_string().unwrap()).collect()
    }

    #[test]
    fn secrets_go_unless_named() {
        let has = ["PATH", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "KEYBOARD", "MY_COOKIE", "DB_PASSWORD"];
        assert_eq!(names(&EnvRules::default(), &has), ["PATH", "KEYBOARD", "MY_COOKIE"]);
        let rules = EnvRules {
            keep: vec!["GITHUB_TOKEN".into()],
            drop: vec!["*_COOKIE".into()],
            ..EnvRules::default()
        };
        assert_eq!(names(&rules, &has), ["PATH", "GITHUB_TOKEN", "KEYBOARD"]);
        let bare = ["PASSWORD", "TOKEN", "SECRET", "PASSPHRASE", "CREDENTIALS", "my_token", "x_password"];
        assert_eq!(names(&EnvRules::default(), &bare), [""; 0]);
        let more =
            ["MYSQL_PWD", "SMTP_PASS", "JWT", "SENTRY_DSN", "PGPASSWORD", "npm_config__authToken", "key"];
        assert_eq!(names(&EnvRules::default(), &more), [""; 0]);
        let plain = ["PWD", "OLDPWD", "GIT_ASKPASS", "XAUTHORITY", "TERM", "MONKEY", "BYPASS", "JWT_ISSUER"];
        assert_eq!(names(&EnvRules::default(), &plain), plain);
        let rules = EnvRules { clear: true, set: vec![("PATH".into(), "/x".into())], ..EnvRules::default() };
        assert_eq!(names(&rules, &["HOME", "FOO", "PATH"]), ["HOME", "PATH"]);
    }
}
