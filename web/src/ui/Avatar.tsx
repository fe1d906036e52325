/** The picture of an agent: an emoji, a small picture, or the first letter of its name. It says nothing that its name does not. */
import { useEffect, useState } from "react";

/** Pictures come as `data:` addresses. The policy of the page allows pictures of its own only, so each becomes a blob. */
const addresses = new Map<string, string>();

export function Avatar({ agent, isLarge = false }: { agent: { name: string; avatar?: string | undefined }; isLarge?: boolean }) {
  const { name, avatar = "" } = agent;
  const picture = usePicture(avatar);
  return (
    <span className={isLarge ? "avatar is-large" : "avatar"} aria-hidden="true">
      {picture ? <img src={picture} alt="" /> : avatar && !avatar.startsWith("data:") ? avatar : (Array.from(name.trim())[0]?.toUpperCase() ?? "")}
    </span>
  );
}

function usePicture(avatar: string): string | null {
  const [address, setAddress] = useState<string | null>(null);
  useEffect(() => setAddress(avatar.startsWith("data:") ? addressOf(avatar) : null), [avatar]);
  return address;
}

function addressOf(data: string): string | null {
  const known = addresses.get(data);
  if (known) return known;
  const found = /^data:(image\/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/=]+)$/.exec(data);
  if (!found) return null;
  const bytes = Uint8Array.from(atob(found[2] ?? ""), (character) => character.charCodeAt(0));
  const made = URL.createObjectURL(new Blob([bytes], { type: found[1] ?? "" }));
  addresses.set(data, made);
  return made;
}
