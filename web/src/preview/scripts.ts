/** Scripts of other makers that the frame of a preview loads when they are needed. */

export function loadScript(address: string, { type = "" } = {}): Promise<void> {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.type = type;
    // The policy of the document lets scripts with its nonce run, and no others.
    script.nonce = document.querySelector<HTMLScriptElement>("script[nonce]")?.nonce ?? "";
    script.onload = () => resolve();
    script.onerror = () => reject(new Error());
    document.head.append(script);
  });
}
