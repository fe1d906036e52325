/** Which image the sandbox of an agent has: one of those that the operator allows, or none. */
import { sandboxImages } from "../../effects/requests";
import { words } from "../../words";
import { SelectField } from "../forms";
import { useLoaded } from "../requestState";

interface Props {
  /** The environment of the agent, without its variables and its script. */
  environment: { readonly image?: string | null; readonly packages?: readonly string[] };
  onChange: (environment: object) => void;
}

export function SandboxImageField({ environment, onChange }: Props) {
  const { value } = useLoaded(sandboxImages);
  const { image, packages, ...rest } = environment;
  const offered = value?.data ?? [];
  const chosen = offered.find((one) => one.name === image);
  if (offered.length === 0 && !image) return null;
  // Packages are another way to name an image. The choice of an image takes their place.
  const choose = (name: string) => onChange(name ? { ...rest, image: name } : rest);
  return (
    <>
      <SelectField label={words.settings.sandboxImage} value={image ?? ""} onChange={choose}>
        <option value="">{words.settings.noSandboxImage}</option>
        {image && !chosen && <option value={image}>{value ? words.settings.sandboxImageGone(image) : image}</option>}
        {offered.map((one) => (
          <option key={one.name} value={one.name}>
            {one.name}
          </option>
        ))}
      </SelectField>
      {chosen && <p className="faint">{chosen.packages.join(", ")}</p>}
    </>
  );
}
