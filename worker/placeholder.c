typedef int gs_placeholder;
