//! Declares a kind of check: its struct, with its description for the reference.

/// Declares a kind of check.
///
/// The struct's comment is its [`super::Described::ABOUT`], each field is a key, and a field's
/// comment is the key's description. The first string is the value of `kind`, the second the
/// check's name in the report, which may contain the keys' values and the arguments after `with`.
/// An optional key has the attribute `default`, with the text for the reference.
///
/// A field with `= READER` is read by that function, which gets [`super::Keys`] and the key's name.
/// If all fields have one, the macro implements [`super::CheckKind`], with the items that follow
/// the struct; otherwise the file does.
macro_rules! check {
    (
        $(#[doc = $about:literal])+
        $kind:literal: $name:literal
        pub struct $Check:ident {
            $(
                $(#[doc = $key:literal])+
                $(#[default = $default:literal])?
                $(#[serde($($serde:tt)+)])?
                pub $field:ident: $type:ty = $reader:expr,
            )+
        }
        $($item:tt)*
    ) => {
        check! {
            $(#[doc = $about])+
            $kind: $name
            pub struct $Check {
                $(
                    $(#[doc = $key])+
                    $(#[default = $default])?
                    $(#[serde($($serde)+)])?
                    pub $field: $type,
                )+
            }
        }

        impl $crate::check::CheckKind for $Check {
            fn read(
                keys: &mut $crate::check::Keys<'_, '_>,
            ) -> Result<Self, $crate::check::TableError> {
                Ok(Self { $($field: $reader(keys, stringify!($field))?,)+ seconds: keys.seconds })
            }

            $($item)*
        }
    };
    (
        $(#[doc = $about:literal])+
        $kind:literal: $name:literal $(with ($($argument:tt)+))?
        pub struct $Check:ident {
            $(
                $(#[doc = $key:literal])+
                $(#[default = $default:literal])?
                $(#[serde($($serde:tt)+)])?
                pub $field:ident: $type:ty,
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Check {
            $(
                $(#[doc = $key])+
                $(#[serde($($serde)+)])?
                pub $field: $type,
            )+
            /// See [`Described::seconds`](crate::Described::seconds).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub seconds: Option<u32>,
        }

        impl $crate::check::Described for $Check {
            const KIND: &'static str = $kind;
            const ABOUT: &'static str = concat!($($about, "\n"),+);
            const KEYS: &'static [$crate::check::Key] = &[$(
                $crate::check::Key::required(stringify!($field), concat!($($key),+))
                    $(.or($default))?,
            )+];

            fn seconds(&self) -> Option<u32> {
                self.seconds
            }
        }

        impl ::std::fmt::Display for $Check {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                #[allow(unused_variables, reason = "a name need not have every key")]
                let Self { $($field,)+ .. } = self;
                write!(f, $name $(, $($argument)+)?)
            }
        }
    };
}

pub(super) use check;
