//! The key `packages`: Debian packages that the guest's root has beside its own.

use toml::Spanned;

use super::error::Problem;

/// Checks the names: at least two of lower case letters, digits, `+`, `-` and `.`, first a letter or digit (Debian Policy 4.7,
/// 5.6.7).
pub(super) fn packages(names: Vec<Spanned<String>>) -> Result<Vec<String>, Problem> {
    let mut packages: Vec<String> = Vec::new();
    for name in names {
        let at = name.span();
        let name = name.into_inner();
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = |byte: u8| is_letter(byte) || matches!(byte, b'+' | b'-' | b'.');
        if name.len() < 2
            || !name.starts_with(|first| u8::try_from(first).is_ok_and(is_letter))
            || !name.bytes().all(fits)
        {
            let message = format!(
                "`packages`: `{name}` is no name of a Debian package: two or more of lower case letters, digits, `+`, `-` \
                 and `.`, as in `rdma-core`"
            );
            return Err(Problem::new(at, message));
        }
        packages.push(name);
    }
    Ok(packages)
}
