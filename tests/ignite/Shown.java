import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.math.BigDecimal;
import java.sql.Time;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.ignite.binary.BinaryObject;
import org.apache.ignite.binary.BinaryType;

/** A value as JSON that keeps its type, so that another reader's value can be compared with it. */
final class Shown {
    private Shown() {
    }

    static String of(Object value) {
        if (value == null)
            return "null";
        if (value instanceof Boolean)
            return tagged("boolean", value.toString());
        if (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long)
            return tagged(value.getClass().getSimpleName().toLowerCase(), value.toString());
        if (value instanceof Float)
            return tagged("float", Integer.toString(Float.floatToRawIntBits((Float)value)));
        if (value instanceof Double)
            return tagged("double", Long.toString(Double.doubleToRawLongBits((Double)value)));
        if (value instanceof Character)
            return tagged("char", Integer.toString((Character)value));
        if (value instanceof String)
            return tagged("string", text((String)value));
        if (value instanceof UUID)
            return tagged("uuid", text(value.toString()));
        if (value instanceof BigDecimal) {
            BigDecimal number = (BigDecimal)value;
            return tagged("decimal", text(number.unscaledValue().toString()), Integer.toString(number.scale()));
        }
        if (value instanceof Timestamp) {
            Timestamp time = (Timestamp)value;
            return tagged("timestamp", Long.toString(time.getTime()), Integer.toString(time.getNanos()));
        }
        if (value instanceof Time)
            return tagged("time", Long.toString(((Time)value).getTime()));
        if (value instanceof Date)
            return tagged("date", Long.toString(((Date)value).getTime()));
        if (value instanceof Enum) {
            Enum<?> one = (Enum<?>)value;
            return tagged("enum", text(one.getDeclaringClass().getName()), "" + one.ordinal(), text(one.name()));
        }
        if (value instanceof BinaryObject)
            return binary((BinaryObject)value);
        if (value.getClass().isArray())
            return array(value);
        if (value instanceof Map)
            return map((Map<?, ?>)value);
        if (value instanceof Collection)
            return collection((Collection<?>)value);
        if (value instanceof Class)
            return tagged("class", text(((Class<?>)value).getName()));
        if (value instanceof Node.Opaque)
            return tagged("opaque");
        return plain(value);
    }

    /** What the binary form says; fields that are null count as missing. */
    private static String binary(BinaryObject object) {
        BinaryType type = object.type();
        if (type.isEnum()) {
            return tagged("enum", text(type.typeName()), "" + object.enumOrdinal(), text(object.enumName()));
        }
        Map<String, String> fields = new TreeMap<>();
        for (String name : type.fieldNames()) {
            Object field = object.field(name);
            if (field != null)
                fields.put(name, of(field));
        }
        return tagged("object", text(type.typeName()), "" + type.typeId(), members(fields));
    }

    /** An object that Ignite made of its class: as the same object in binary form. */
    private static String plain(Object value) {
        Map<String, String> fields = new TreeMap<>();
        try {
            for (Field field : value.getClass().getDeclaredFields()) {
                field.setAccessible(true);
                if (!Modifier.isStatic(field.getModifiers()) && field.get(value) != null)
                    fields.put(field.getName(), of(field.get(value)));
            }
        }
        catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
        String name = value.getClass().getName();
        return tagged("object", text(name), "" + name.toLowerCase().hashCode(), members(fields));
    }

    private static String array(Object value) {
        String name = value.getClass().getComponentType().getSimpleName();
        List<String> items = new ArrayList<>();
        for (int at = 0; at < Array.getLength(value); at++)
            items.add(of(Array.get(value, at)));
        return tagged(value.getClass().getComponentType().isPrimitive() ? name + "[]" : "array", items.toString());
    }

    private static String collection(Collection<?> value) {
        List<String> items = new ArrayList<>();
        for (Object item : value)
            items.add(of(item));
        if (value.getClass() == HashSet.class)
            Collections.sort(items);
        return tagged("collection", text(value.getClass().getSimpleName()), items.toString());
    }

    private static String map(Map<?, ?> value) {
        List<String> items = new ArrayList<>();
        value.forEach((key, one) -> items.add("[" + of(key) + ", " + of(one) + "]"));
        if (value.getClass() == HashMap.class)
            Collections.sort(items);
        return tagged("map", text(value.getClass().getSimpleName()), items.toString());
    }

    private static String members(Map<String, String> fields) {
        List<String> shown = new ArrayList<>();
        fields.forEach((name, value) -> shown.add(text(name) + ": " + value));
        return "{" + String.join(", ", shown) + "}";
    }

    private static String tagged(String kind, String... parts) {
        return "[" + text(kind) + (parts.length == 0 ? "" : ", ") + String.join(", ", parts) + "]";
    }

    static String text(String value) {
        if (value == null)
            return "null";
        StringBuilder shown = new StringBuilder("\"");
        for (char one : value.toCharArray()) {
            if (one == '"' || one == '\\' || one < ' ' || one > '~')
                shown.append(String.format("\\u%04x", (int)one));
            else
                shown.append(one);
        }
        return shown.append('"').toString();
    }
}
