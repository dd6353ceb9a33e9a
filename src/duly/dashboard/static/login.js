// A sign-in link has the token after its #, which browsers do not send to a server.
(() => {
  const signIn = () => {
    const token = location.hash.slice(1);
    if (!token) return;
    history.replaceState(null, "", location.pathname);
    const form = document.querySelector("form.login");
    form.elements.token.value = token;
    form.requestSubmit();
  };
  addEventListener("hashchange", signIn);
  signIn();
})();
